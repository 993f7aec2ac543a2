simulate-scale: $(VENV) ## Simulate how a run scales, from measured inputs (GPUS=8,64,512; GROUPS=8: a GPU and step; EQUAL=1: answers of one length)
	@$(RUN) PYTHONPATH=dev python -m clotho_dev.simulation $(if $(GPUS),--gpus $(GPUS)) $(if $(GROUPS),--groups $(GROUPS)) $(if $(EQUAL),--equal)

bench-simulation: $(VENV) ## Compare the simulation with real runs of one to four ranks on this machine's CPU (root; about 8 minutes)
	$(RUN) python tests/bench/simulated_scale.py

.PHONY: simulate-scale bench-simulation
