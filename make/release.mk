RELEASE_TOOL := PYTHONPATH=dev .tools/cluster/bin/python -m clotho_dev.release

.PHONY: push release chart-package chart-push
push: $(TOOLS) ## Build every image and push it (REGISTRY=host/path TAG=name; VARIANTS=..., BUILDER=buildah|podman|docker, BASE_IMAGE=..., PLAIN_HTTP=1)
	@$(RELEASE_TOOL) push --registry "$(REGISTRY)" --tag "$(TAG)" --variants "$(VARIANTS)"

release: $(VENV) ## Set a new version everywhere, ready to commit, and pack the chart (VERSION=x; DIGESTS=dist/images.yaml)
	@PYTHONPATH=dev .venv/bin/python -m clotho_dev.release release --version "$(VERSION)" --digests "$(DIGESTS)"

chart-package: $(TOOLS) ## Pack the chart into dist/ (DIGESTS=dist/images.yaml: with the images that were pushed)
	@$(RELEASE_TOOL) chart-package --digests "$(DIGESTS)"

chart-push: $(TOOLS) ## Push the packed chart as an OCI artefact (REGISTRY=host/path)
	@$(RELEASE_TOOL) chart-push --registry "$(REGISTRY)"
