#!/bin/bash
# Encode a folder of slides on a SLURM cluster: sbatch --array=1-16 slurm_array.sh
# Each task of the array processes its part of the slides. If tasks fail or are stopped, submit the
# same command again, also with another number of tasks; completed results are kept.
#SBATCH --job-name=scmil-encode
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --gres=gpu:1                # without GPUs: delete this line
#SBATCH --time=24:00:00
#SBATCH --requeue                   # a preempted task is started again, and resumes
#SBATCH --output=scmil-%A-%a.log

set -euo pipefail

SLIDES=${SLIDES:-/data/slides}      # both folders must have the same path on all nodes
WORK=${WORK:-/data/work}
ENCODER=${ENCODER:-resnet18}

srun scmil encode "$SLIDES" --out "$WORK" --encoder "$ENCODER" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
    --workers "$SLURM_CPUS_PER_TASK" --offline
