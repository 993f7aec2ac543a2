# The environment image brings reasoning-gym's hundred tasks along.
EXTRA_OF_environment := environment-reasoning-gym

.PHONY: requirements
requirements: $(addprefix requirements-,operator api-server trainer environment) requirements-of-variants ## Export the images' dependencies from uv.lock

requirements-%: | $(UV)
	@$(UV) export --quiet --frozen --no-default-groups --no-emit-project --no-annotate --no-header \
	  --extra $(or $(EXTRA_OF_$*),$*) --output-file images/$*/requirements.txt

EXPORT := export --quiet --frozen --no-default-groups --no-emit-project --no-annotate --no-header
.PHONY: requirements-of-variants
requirements-of-variants: | $(UV) ## Export those of the variants; Atropos' library and vLLM are resolved apart
	@$(UV) $(EXPORT) --extra $(EXTRA_OF_environment) --extra environment-verifiers --output-file images/environment/requirements-verifiers.txt
	@$(UV) $(EXPORT) --extra trainer-tinker --output-file images/trainer/requirements-tinker.txt
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  images/environment/requirements-atropos.in --output-file images/environment/requirements-atropos.txt
	@$(UV) pip compile --quiet --only-binary :all: --python-version 3.11 --python-platform x86_64-manylinux_2_36 --generate-hashes \
	  --no-annotate --no-header images/trainer/requirements-vllm.in --output-file images/trainer/requirements-vllm.txt
