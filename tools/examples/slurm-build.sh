#!/bin/bash
# A job array of Slurm builds the kernels of a manifest. The merge runs when all shards are there:
#   job=$(sbatch --parsable slurm-build.sh kernels.txt sm_80,sm_90a /shared/kernels)
#   sbatch --dependency=afterok:"$job" --wrap 'flashjit bundle merge /shared/kernels/*.fjb -o /shared/kernels.fjb'
# If shard 3 failed, it is built again by: sbatch --array=3 slurm-build.sh ..., with the same words behind it.
#SBATCH --job-name=flashjit-build
#SBATCH --array=1-16
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
set -euo pipefail

# The number of shards is written here, because SLURM_ARRAY_TASK_COUNT counts only the tasks of an array that is run
# again in part.
count=${SHARDS:-16}
manifest=$1 targets=$2 folder=$3

mkdir -p "$folder"
flashjit build "$manifest" --arch "$targets" --jobs "${SLURM_CPUS_PER_TASK:-1}" \
  --shard "$SLURM_ARRAY_TASK_ID/$count" --out "$folder/$SLURM_ARRAY_TASK_ID.fjb"
