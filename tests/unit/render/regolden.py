"""Writes the golden manifests anew; read the difference before you commit it."""

from pathlib import Path

import yaml

from unit.render.recorded import RECORDED


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)

if __name__ == "__main__":
    for case, manifests in RECORDED.items():
        path = Path(__file__).parent / "golden" / f"{case}.yaml"
        path.write_text(yaml.dump_all(manifests(), Dumper=_Dumper, sort_keys=False, width=120))
