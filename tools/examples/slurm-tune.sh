#!/bin/bash
# A job array of Slurm tunes schedules, each task with a GPU of its own and nobody else beside it:
#   job=$(sbatch --parsable slurm-tune.sh specs.txt /shared/tuned)
#   sbatch --dependency=afterok:"$job" --wrap 'flashjit tune --merge /shared/tuned/*.txt --records /shared/tuned.txt'
# A task that was ended goes on where it was when it is run again, because its journal lies beside its records.
#SBATCH --job-name=flashjit-tune
#SBATCH --array=1-8
#SBATCH --gres=gpu:1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --time=02:00:00
set -euo pipefail

count=${SHARDS:-8}
sweep=$1 folder=$2

mkdir -p "$folder"
flashjit tune --sweep "$sweep" --target "${TARGET:-gpu}" --budget "${BUDGET:-60m}" \
  --shard "$SLURM_ARRAY_TASK_ID/$count" --records "$folder/$SLURM_ARRAY_TASK_ID.txt"
