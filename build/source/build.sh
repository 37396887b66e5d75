#!/usr/bin/env bash
# Builds the wheel of PyTorch @version@ with Large Model Support from source, into dist/ beside this script.
# It takes hours, 60 GB of disk, and what PyTorch's own build needs: see CONTRIBUTING.md there.
#
#   ./build.sh [FOLDER]     FOLDER: where the clone goes, or is; default: pytorch, beside this script
#
# PYTHON names the Python to build for, REPOSITORY another place to clone from.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-$here/pytorch}
python=${PYTHON:-python3}
repository=${REPOSITORY:-https://github.com/pytorch/pytorch.git}
commit=@commit@

if [ ! -d "$folder" ]; then
  git clone --branch @tag@ --depth 1 --recurse-submodules --shallow-submodules "$repository" "$folder.part"
  mv "$folder.part" "$folder"
fi
cd "$folder"
if [ "$(git rev-parse HEAD)" = "$commit" ]; then
  git -c user.name="PyTorch LMS" -c user.email=lms@pytorch-lms.invalid am --quiet \
    $(sed "s|^|$here/patches/|" "$here/patches/series")
fi
# The series is in, and made of every file what it should.
while read -r blob path; do
  found=$(git rev-parse --verify --quiet "HEAD:$path" || echo nothing)
  if [ "$found" != "$blob" ]; then
    echo "$folder is not @tag@ with the series: $path is $found, should be $blob. Remove the folder and run this again." >&2
    exit 1
  fi
done < "$here/blobs"

"$python" -m pip install --quiet --requirement requirements.txt
export PYTORCH_BUILD_VERSION=@lms_version@ PYTORCH_BUILD_NUMBER=1 USE_CUDA=${USE_CUDA:-1}
"$python" -m pip wheel --verbose --no-build-isolation --no-deps --wheel-dir "$here/dist" .
