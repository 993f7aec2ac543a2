bench-trainer: $(VENV) ## Compare a training step with stock TRL (tiny shape on a CPU; SHAPE=8b on a GPU)
	$(RUN) python tests/bench/trainer.py --shape $(or $(SHAPE),tiny) $(if $(SHAPE),,--prompt-tokens 16 --new-tokens 16)

bench-memory: $(VENV) ## Compare the GPU memory of LoRA and QLoRA (tiny shape on a CPU; SHAPE=8b on a GPU)
	$(RUN) python tests/bench/memory.py --shape $(or $(SHAPE),tiny) $(if $(SHAPE),,--prompt-tokens 16 --new-tokens 16)

bench-learning: $(VENV) ## Compare what is learnt with each engine and schedule (minutes on a CPU)
	$(RUN) OMP_NUM_THREADS=1 python tests/bench/learning.py

h200-packages: ## Pack what an offline GPU machine lacks for bench-trainer into .local/h200-packages
	dev/h200_packages.sh .local/h200-packages

.PHONY: bench-learning bench-memory bench-trainer h200-packages
