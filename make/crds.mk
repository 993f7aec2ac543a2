.PHONY: crds golden
crds: $(VENV) ## Generate the CRDs from the types
	$(RUN) python -m clotho.api.crd crds

golden: $(VENV) ## Record the manifests that runs are rendered to anew
	cd tests && $(RUN) PYTHONPATH=. python -m unit.render.regolden
