#!/usr/bin/env bash
# Debian packages that the tests use: Slurm with accounting and its wrappers for Torque, munge, MariaDB, Open MPI,
# Charliecloud, Chromium, sshd, a C++ compiler. (libpmix-dev has the name by which Slurm's plugin looks for PMIx.)
set -euo pipefail
packages=(slurm-wlm slurm-wlm-torque slurmdbd munge mariadb-server openmpi-bin libpmix-dev charliecloud-runtime chromium chromium-driver openssh-server prometheus g++)
# Debian's own Python makes no virtual environment without it
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
missing=()
for package in "${packages[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "These Debian packages are missing: ${missing[*]}" >&2
    echo "Tests that need them are skipped and say so. To run all: sudo apt-get install ${missing[*]}" >&2
    exit 0
fi
echo "installing ${missing[*]} ..." >&2
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# services are not started: the tests run their own, on folders and ports of their own
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
fi
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
