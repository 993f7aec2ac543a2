.PHONY: bench-churn bench-operator operator-docs
bench-operator: $(VENV) ## Start 1,000 runs on KWOK nodes: latency, CPU, memory, writes (RUNS=1000)
	$(RUN) python tests/bench/operator_scale.py --runs $(or $(RUNS),1000)

bench-churn: $(VENV) ## Change 50 runs a second for two minutes and kill the leader among it (RUNS=200 RATE=50)
	$(RUN) python tests/bench/operator_churn.py --runs $(or $(RUNS),200) --rate $(or $(RATE),50)

operator-docs: $(VENV) ## Write docs/operator-settings.md and docs/metrics.md from the code
	$(RUN) python -m clotho.manager.docs
	$(RUN) PYTHONPATH=dev python -m clotho_dev.metrics_page
