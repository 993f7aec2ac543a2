.PHONY: crds golden
crds: $(VENV) ## Generate the CRDs and their reference from the types
	$(RUN) python -m clotho.api.crd crds
	$(RUN) python -m clotho.api.reference docs/api.md

golden: $(VENV) ## Record the manifests that runs are rendered to anew
	cd tests && $(RUN) PYTHONPATH=. python -m unit.render.regolden
