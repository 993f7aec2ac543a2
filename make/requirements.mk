# The environment image brings reasoning-gym's hundred tasks along.
EXTRA_OF_environment := environment-reasoning-gym

.PHONY: requirements
requirements: $(addprefix requirements-,operator api-server trainer environment) ## Export the images' dependencies from uv.lock

requirements-%: | $(UV)
	@$(UV) export --quiet --frozen --no-default-groups --no-emit-project --no-annotate --no-header \
	  --extra $(or $(EXTRA_OF_$*),$*) --output-file images/$*/requirements.txt
