.PHONY: try-environment describe-environment
try-environment: $(VENV) ## Make a few groups with an environment (ENTRY=letters BASE_URL=... MODEL=..., key in OPENAI_API_KEY)
	$(RUN) PYTHONPATH=images/contract:images/environment python -m clotho_environment process --entry $(or $(ENTRY),letters) \
	 --base-url "$(BASE_URL)" --model "$(or $(MODEL),default)" --groups $(or $(GROUPS),3)

describe-environment: $(VENV) ## Print an environment's config fields as JSON (ENTRY=letters)
	$(RUN) PYTHONPATH=images/contract:images/environment python -m clotho_environment describe --entry $(or $(ENTRY),letters)

.PHONY: atropos-loop
atropos-loop: $(VENV) ## Train on environments of an Atropos checkout, unchanged (ATROPOS=path FILES="below environments/")
	@$(RUN) UV="$(abspath $(UV))" PYTHONPATH=dev:operator:images/contract:tests python -m atropos.loop "$(ATROPOS)" $(FILES)
