.PHONY: chart chart-package
chart: $(VENV) ## Write what is generated around the chart: CRDs, dashboards, install manifest
	@PYTHONPATH=dev .venv/bin/python -m clotho_dev.chart

chart-package: chart ## Pack the chart into dist/
	@PYTHONPATH=dev .venv/bin/python -c 'from clotho_dev.cluster import binaries; print(binaries.find(["helm"])["helm"])' \
	 | xargs -I HELM HELM package charts/clotho --destination dist
