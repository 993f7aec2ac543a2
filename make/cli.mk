.PHONY: bench-cli
bench-cli: $(VENV) ## Time `clotho --help` of every command beside an empty interpreter
	$(RUN) python tests/bench/command_line.py
