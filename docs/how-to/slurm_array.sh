#!/bin/bash
# A folder of slides becomes a folder of bags, on a SLURM cluster: sbatch --array=1-16 slurm_array.sh
# Every task of the array takes its part of the slides. Tasks that fail or are stopped: the same command again, also with
# another number of tasks; what is done is kept.
#SBATCH --job-name=scmil-encode
#SBATCH --cpus-per-task=4
#SBATCH --mem=8G
#SBATCH --gres=gpu:1                # without GPUs: delete this line
#SBATCH --time=24:00:00
#SBATCH --requeue                   # a task that is pushed aside is started again, and goes on where it was
#SBATCH --output=scmil-%A-%a.log

set -euo pipefail

SLIDES=${SLIDES:-/data/slides}      # all nodes see both folders under these names
WORK=${WORK:-/data/work}
ENCODER=${ENCODER:-resnet18}

srun scmil encode "$SLIDES" --out "$WORK" --encoder "$ENCODER" \
    --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" \
    --workers "$SLURM_CPUS_PER_TASK" --offline
