#!/usr/bin/env bash
# Fails if clang-format or ruff would change a file. Both come with the extra `dev`: another version may differ.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find csrc -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 clang-format --dry-run -Werror
ruff format --check .
