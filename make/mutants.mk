mutants: $(VENV) ## Check that the tests notice deliberate defects (MATCH=word for some of them)
	@$(RUN) python tests/mutants/run.py $(if $(MATCH),--match $(MATCH))

.PHONY: mutants
