.PHONY: bench-web screenshots
bench-web: $(VENV) ## Time the page of 1,000 runs beside an empty page (RUNS=1000)
	$(RUN) python tests/bench/web.py --runs $(or $(RUNS),1000)

screenshots: $(VENV) ## Make the pictures of the page in docs/images with the browser tests
	$(RUN) CLOTHO_SCREENSHOTS=docs/images pytest tests/integration/web/test_browser.py -k every_page
