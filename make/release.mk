RELEASE_TOOL := PYTHONPATH=dev .tools/cluster/bin/python -m clotho_dev.release

.PHONY: push
push: $(TOOLS) ## Build every image and push it (REGISTRY=host/path, TAG=name; BUILDER=buildah|podman|docker, PLAIN_HTTP=1)
	@$(RELEASE_TOOL) push --registry "$(REGISTRY)" --tag "$(TAG)"
