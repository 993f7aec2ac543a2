"""`python -m chart`: write everything that is generated around the chart."""

from chart import generate
from cluster import binaries

if __name__ == "__main__":
    generate.write(generate.chart_files())
    generate.write(generate.install_files(binaries.find(["helm"])["helm"]))
