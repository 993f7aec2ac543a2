"""How a run scales past the machines at hand: a discrete-event model of its parts, from measured inputs."""
