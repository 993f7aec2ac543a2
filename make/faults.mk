.PHONY: faults audit soak
faults: $(VENV) ## Repeat a run's life with one fault at a time: every write, every fault (CAMPAIGN=deletion, CASE='text')
	@$(RUN) pytest tests/faults$(if $(CAMPAIGN),/test_$(CAMPAIGN).py) -q --whole $(if $(CASE),--case "$(CASE)")

audit: $(VENV) ## Audit dependencies, search for secrets, write the SBOM, fuzz every HTTP surface, attempt escalations
	@$(RUN) python tests/audit/run.py $(CHECK)

soak: $(VENV) ## Run several runs for MINUTES=10 while operators and pods are killed; then check that nothing is lost
	@$(RUN) PYTHONPATH=operator:images/contract:dev:tests python -m faults.soak --minutes $(or $(MINUTES),10)
