, := ,
bench-trainer: $(VENV) ## Compare a training step with TRL with vLLM (SHAPE=8b on a GPU) or stock TRL (tiny shape on a CPU)
	$(RUN) python tests/bench/trainer.py --shape $(or $(SHAPE),tiny) \
	  $(if $(SHAPE),,--prompt-tokens 16 --new-tokens 16 --sides ours$(,)serving$(,)stock)

bench-memory: $(VENV) ## Compare the GPU memory of LoRA and QLoRA (tiny shape on a CPU; SHAPE=8b on a GPU)
	$(RUN) python tests/bench/memory.py --shape $(or $(SHAPE),tiny) $(if $(SHAPE),,--prompt-tokens 16 --new-tokens 16)

bench-handover: $(VENV) ## Measure what a step loses between two batches of answers (a clock in place of the GPU; 3 minutes)
	$(RUN) python tests/bench/handover.py

bench-long-rows: $(VENV) ## Train on rows of 16,384 tokens (SHAPE=8b on a GPU; short rows of the tiny shape on a CPU)
	$(RUN) python tests/bench/long_rows.py --shape $(or $(SHAPE),tiny) $(if $(SHAPE),,--prompt-tokens 16 --new-tokens 48)

bench-learning: $(VENV) ## Compare what is learnt with each engine and schedule (minutes on a CPU)
	$(RUN) OMP_NUM_THREADS=1 python tests/bench/learning.py

bench-fp8: $(VENV) ## Train a small model, round it to 8 bits, and measure what that changes (minutes on a CPU)
	$(RUN) OMP_NUM_THREADS=1 python tests/bench/fp8.py

# Only the trainer's own conftest: that of the tier starts a control plane, whose packages a GPU machine may lack.
gpu-test: $(VENV) ## Run the trainer's tests that need a GPU; fails on versions other than the lock's
	$(RUN) pytest tests/integration/trainer/test_on_gpu.py --confcutdir=tests/integration/trainer

bench-vllm: $(VENV) ## Run inference.engine vllm against the real vLLM (a GPU, and vLLM installed)
	$(RUN) python tests/bench/real_vllm.py

h200-packages: ## Pack what an offline GPU machine lacks for the benchmarks, vLLM too, into .local/h200-packages
	dev/h200_packages.sh .local/h200-packages vllm

.PHONY: bench-fp8 bench-handover bench-learning bench-long-rows bench-memory bench-trainer bench-vllm gpu-test h200-packages
