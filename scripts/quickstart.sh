#!/usr/bin/env bash
# From a bare clone to a trained GraphSAGE whose features come from a compressed store, in one command. Arguments go to
# train_sage.py, e.g. --set features=raw. The last line of output is one JSON object. See _env.sh for the variables.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/_env.sh"

# The CUDA extension only for a GPU that is here, and for that one alone: compiling it for all takes minutes.
if capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1) && [[ -n $capability ]]; then
  export IBP_CUDA_ARCHITECTURES=${IBP_CUDA_ARCHITECTURES:-${capability/./}}
else
  export IBP_CUDA=${IBP_CUDA:-OFF}
fi
prepare_env .venv train
exec "$venv/bin/python" "$repository/scripts/train_sage.py" --config "$repository/configs/wordnet_sage.yaml" "$@"
