simulate-scale: $(VENV) ## Simulate how a run scales, from measured inputs (GPUS=8,64,512; EQUAL=1: answers of one length)
	@$(RUN) PYTHONPATH=dev python -m clotho_dev.simulation $(if $(GPUS),--gpus $(GPUS)) $(if $(EQUAL),--equal)

bench-simulation: $(VENV) ## Compare the simulation with real steps on this machine's CPU
	$(RUN) python tests/bench/simulated_scale.py

.PHONY: simulate-scale bench-simulation
