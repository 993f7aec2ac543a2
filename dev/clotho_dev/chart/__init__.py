"""What is generated around the chart: its copy of the CRDs, the dashboards, and the install manifest."""
