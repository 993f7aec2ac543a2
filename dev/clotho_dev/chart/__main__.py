"""`python -m clotho_dev.chart`: write everything that is generated around the chart."""

from clotho_dev.chart import generate
from clotho_dev.cluster import binaries

if __name__ == "__main__":
    generate.write(generate.chart_files())
    generate.write(generate.install_files(binaries.find(["helm"])["helm"]))
