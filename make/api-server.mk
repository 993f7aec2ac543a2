.PHONY: bench-api-server
bench-api-server: $(VENV) ## Compare the API server with atroposlib's on 128 x 8192-token batches
	$(RUN) python tests/bench/api_server.py
