#!/usr/bin/env bash
# Make .venv with hpcdet in it. Usage: scripts/setup.sh [demo|dev|frameworks|interactive|docs]. Does nothing when it is up to date.
# `frameworks` makes one with every extra, gigabytes, in ~/.cache/hpcdet-bench/frameworks, and prints where it is;
# `interactive` one beside it with JupyterLab; `docs` one for the generator of the pages alone.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-dev}
extras=examples
venv=.venv
if [ "$what" = frameworks ]; then
    extras=examples,deepspeed,huggingface,keras,lightning,tensorflow
    venv=${XDG_CACHE_HOME:-$HOME/.cache}/hpcdet-bench/frameworks
    echo "$venv"
fi
if [ "$what" = interactive ]; then
    extras=examples,notebook,tensorboard
    venv=${XDG_CACHE_HOME:-$HOME/.cache}/hpcdet-bench/interactive
    echo "$venv"
fi
if [ "$what" = docs ]; then
    venv=${XDG_CACHE_HOME:-$HOME/.cache}/hpcdet-bench/docs
    echo "$venv"
fi
stamp=$venv/.installed-$what
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "hpcdet needs Python 3.11 or newer; found $("$python" --version). Set PYTHON=/path/to/python3.11" >&2
    exit 1
fi
if [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt scripts/constraints.txt ] &&
    { [[ "$what" != frameworks && "$what" != interactive ]] || [ "$(cat "$stamp")" = "$PWD" ]; }; then
    exit 0
fi
# without pip it would be taken for a finished one next time
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv" || { rm -rf "$venv"; exit 1; }
# modules are compiled as they are imported: most of what frameworks bring never is
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --constraint scripts/constraints.txt)
group() { # the packages of a group of pyproject.toml, a line each
    "$python" -c 'import sys, tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"][sys.argv[1]], sep="\n")' "$1"
}
if [ "$what" = docs ]; then
    group docs | xargs -d '\n' "${pip[@]}"
    echo "$PWD" >"$stamp"
    exit 0
fi
echo "installing hpcdet into $venv (PyTorch takes a minute) ..." >&2
"$venv/bin/python" -c 'import torch' 2>/dev/null || "${pip[@]}" torch==2.13.0
"${pip[@]}" --editable ".[$extras]"
if [ "$what" != demo ]; then
    group dev | xargs -d '\n' "${pip[@]}"
fi
if [ "$what" = dev ] && [ ! -e "$venv/share/axe-core/axe.min.js" ] && command -v npm >/dev/null; then
    # accessibility rules for tests of the report; without npm or network these are skipped and say so
    packed=$(mktemp -d)
    if (cd "$packed" && npm pack --silent axe-core@4.14.1 >/dev/null && tar xzf axe-core-*.tgz); then
        mkdir -p "$venv/share/axe-core"
        mv "$packed/package/axe.min.js" "$packed/package/LICENSE" "$venv/share/axe-core/"
    fi
    rm -rf "$packed"
fi
echo "$PWD" >"$stamp"
