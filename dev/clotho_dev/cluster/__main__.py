from clotho_dev.cluster.cli import main

main()
