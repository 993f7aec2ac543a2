.PHONY: chart
chart: $(VENV) ## Write what is generated around the chart: CRDs, dashboards, install manifest
	@PYTHONPATH=dev .venv/bin/python -m clotho_dev.chart
