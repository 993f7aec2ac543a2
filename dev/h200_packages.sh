#!/bin/sh
# Packs what the GPU machine lacks for the benchmarks and tests of the trainer: Python 3.12, no network, torch and transformers already there.
# Usage: dev/h200_packages.sh FOLDER   writes FOLDER/packages.tar.xz, which unpacks into a folder for --packages.
# datasets 4 because that machine's huggingface-hub is older than datasets 5 requires.
set -eu
out=${1:-.local/h200-packages}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
uv export --quiet --frozen --no-hashes --no-dev --extra trainer --extra api-server --extra environment --no-emit-project | grep -Ev '^(datasets|dill|multiprocess)==' > "$work/locked.txt"
uv pip install --quiet --link-mode copy --constraint "$work/locked.txt" --target "$work/packages" --no-deps --only-binary :all: \
    --python-platform x86_64-manylinux_2_28 --python-version 3.12 \
    trl peft bitsandbytes 'datasets>=4.7,<5' pyarrow pandas aiohttp msgspec prometheus-client \
    multidict yarl frozenlist aiosignal propcache aiohappyeyeballs attrs \
    uvloop pydantic pydantic-core annotated-types typing-inspection typing-extensions pyyaml \
    pytest pytest-asyncio pytest-timeout hypothesis sortedcontainers pluggy iniconfig pygments 'dill<0.4.1' 'multiprocess<0.70.19' xxhash python-dateutil six tzdata pytz requests urllib3 charset-normalizer certifi jinja2 markupsafe
cd "$work/packages"
# Of pyarrow only tables, datasets and parquet are needed: no headers, no tests, no network file systems.
rm -rf bin pyarrow/include pyarrow/includes pyarrow/tests pyarrow/src pandas/tests pyarrow/*.pyx pyarrow/*.pxi pyarrow/*.pxd
rm -f pyarrow/*flight* pyarrow/*s3* pyarrow/*gcs* pyarrow/*azure* pyarrow/*_orc* pyarrow/*cpp_tests*
# Of bitsandbytes only CUDA 12.6 and newer.
rm -f bitsandbytes/*rocm* bitsandbytes/*xpu* bitsandbytes/*cuda118* bitsandbytes/*cuda12[14]*
find . -name __pycache__ -type d -prune -exec rm -rf {} +
cd - > /dev/null
mkdir -p "$out"
XZ_OPT='-6 -T1' tar -C "$work" -cJf "$out/packages.tar.xz" packages
du -m "$out/packages.tar.xz"
