#!/bin/sh
# Packs the locked packages of a trainer for a GPU machine without a network that has Python 3.12, torch 2.11 and triton 3.6.
# Usage: dev/h200_packages.sh FOLDER [vllm | torch]   writes FOLDER/packages.tar.xz.00, .01, ...
#   vllm    also vLLM, for the machine's own torch, and what it imports
#   torch   also the lock's torch, triton, cuBLAS, NCCL and FlashAttention 4: what the trainer image installs
# Machine code of other GPUs than Hoppers is blanked in it (clotho_dev/gpu_code.py), which halves what has to travel.
# There: cat packages.tar.xz.* | tar -xJ, then PYTHONPATH=$PWD/packages: these packages precede the machine's own. With torch, in an interpreter without
# the machine's packages (python3 -m venv --without-pip), because its torchvision is made for its own torch; the CUDA libraries that are left out come
# from SITE, the folder of its packages: cp -rsn SITE/nvidia packages/ and cp -rsn SITE/triton/backends/nvidia/bin packages/triton/backends/nvidia/
# FlashAttention 4 also needs $PWD/packages/nvidia_cutlass_dsl/dsl_packages in PYTHONPATH.
# PART_MIB (56) is the largest size of a part.
set -eu
out=${1:-.local/h200-packages}
dev=$(dirname "$(readlink -f "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
locked() { uv export --quiet --frozen --no-hashes --no-emit-project --no-annotate --no-header "$@" | grep -E '^[a-z]'; }
install() { uv pip install --quiet --link-mode copy --target "$work/packages" --no-deps --only-binary :all: \
    --python-platform x86_64-manylinux_2_35 --python-version 3.12 --requirements "$1"; }
# What the machine has, what neither benchmarks nor tests import, and FlashAttention 4, which vLLM takes for another version.
left_out='torch|torchvision|torchaudio|torchcodec|triton|nvidia-.*|cuda-.*|cupy.*|networkx|sympy|mpmath|wandb|gitpython|gitdb|smmap|sentry-sdk|platformdirs|flashinfer.*|ray|opencv.*|scipy|numba|llvmlite|tokenspeed.*|tilelang|pynvvideocodec|z3-solver|setuptools|pip|flash-attn-4|quack-kernels|torch-c-dlpack-ext'
{
    locked --no-dev --extra trainer --extra api-server --extra environment | grep -Ev '^(datasets|dill|multiprocess)=='
    printf '%s\n' 'datasets>=4.7,<5' 'dill<0.4.1' 'multiprocess<0.70.19'  # newer ones cannot hash a dataset beside this cut pyarrow
    locked --only-dev | grep -E '^(pytest|pytest-asyncio|pytest-timeout|hypothesis|sortedcontainers|pluggy|iniconfig|pygments)=='
} | sort -u | grep -Eiv "^($left_out)[=<>]" > "$work/locked.txt"
install "$work/locked.txt"
if [ "${2:-}" = vllm ]; then
    locked --no-dev --extra trainer | grep -E '^transformers==' > "$work/constraints.txt"
    printf 'vllm==0.26.0\ntorch==2.11.0\n' > "$work/vllm.in"  # the last of the vLLM versions for that torch
    uv pip compile --quiet --no-header --no-annotate --python-version 3.12 \
        --python-platform x86_64-manylinux_2_35 --constraint "$work/constraints.txt" "$work/vllm.in" > "$work/resolved.txt"
    sed 's/[=<>].*/==/' "$work/locked.txt" > "$work/names.txt"
    grep -Eiv "^($left_out)==" "$work/resolved.txt" | grep -vFf "$work/names.txt" > "$work/vllm.txt"
    install "$work/vllm.txt"
fi
if [ "${2:-}" = torch ]; then
    locked --no-dev --extra trainer | grep -E '^(torch|triton|networkx|sympy|mpmath|setuptools|nvidia-(cublas|cuda-runtime|nccl.*|nvshmem.*|cutlass-dsl|cutlass-dsl-libs-(base|core|cu13))|cuda-(bindings|pathfinder)|flash-attn-4|quack-kernels|torch-c-dlpack-ext)==' > "$work/torch.txt"
    install "$work/torch.txt"
fi
cd "$work/packages"
# Of pyarrow only tables, datasets and parquet are needed: no headers, no tests, no network file systems.
rm -rf bin samples pyarrow/include pyarrow/includes pyarrow/tests pyarrow/src pandas/tests pyarrow/*.pyx pyarrow/*.pxi pyarrow/*.pxd
rm -f pyarrow/*flight* pyarrow/*s3* pyarrow/*gcs* pyarrow/*azure* pyarrow/*_orc* pyarrow/*cpp_tests*
# Of bitsandbytes only CUDA 13; of vLLM what a Hopper runs.
rm -f bitsandbytes/*rocm* bitsandbytes/*xpu* bitsandbytes/*cuda1[12]*
rm -rf vllm/vllm-rs vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so
# Of torch and triton what runs on a Hopper: no headers, no static libraries, no other vendor's compiler, no debug symbols.
if [ -d torch ]; then
    rm -rf torch/include torch/test triton/backends/amd/lib triton/backends/nvidia/lib/cupti*
    find torch triton nvidia -name '*.a' -delete
    find triton/backends/nvidia/bin -type f ! -name ptxas -delete
    find nvidia/nvshmem/lib ! -name 'libnvshmem_host*' -type f -delete
    rm -f triton/_C/libproton.so triton/instrumentation/*.so
    strip --strip-unneeded triton/_C/libtriton.so torch/lib/libtorch_cpu.so torch/lib/libtorch_cuda.so
fi
PYTHONPATH=$dev python3 -m clotho_dev.gpu_code . 90
find . -name __pycache__ -type d -prune -exec rm -rf {} +
cd - > /dev/null
mkdir -p "$out" "$work/parts"
XZ_OPT='-1 -T0' tar -C "$work" -cJf - packages | split --bytes "${PART_MIB:-56}M" --numeric-suffixes - "$work/parts/packages.tar.xz."
rm -f "$out"/packages.tar.xz.*
mv "$work"/parts/* "$out"  # only once all are written: a folder that lacks its last part looks complete
du -m "$out"/packages.tar.xz.*
