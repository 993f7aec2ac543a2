"""An Atropos environment whose rollouts always fail."""

from atropos_letters import LettersEnv


class BrokenEnv(LettersEnv):
    name = "atropos_broken"

    async def collect_trajectories(self, item):
        raise KeyError("answer")


if __name__ == "__main__":
    BrokenEnv.cli()
