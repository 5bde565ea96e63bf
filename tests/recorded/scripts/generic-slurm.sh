#!/bin/bash
# Who this is. The tag finds the job again if its submitter dies before noting the id.
#SBATCH --job-name=digits-7f3a-1
#SBATCH --comment=hpcdet:digits-7f3a:1-ab12
#SBATCH --chdir=/scratch/digits-7f3a

# One worker per array task, and how many of them at once.
#SBATCH --array=0-3%2

# The size of one worker: one task per rank.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=3
#SBATCH --mem=6144M
#SBATCH --time=1-03:46:40

# Where.
#SBATCH --partition=gpu

# The warning before the time limit goes to the ranks (no B:), as each of them has to save.
# Slurm would hold a task for ever that it may requeue and whose launch fails: not before it runs.
# A requeued task adds to its log instead of replacing it.
#SBATCH --signal=USR2@120
#SBATCH --no-requeue
#SBATCH --output=/scratch/digits-7f3a/jobs/0001.logs/%A_%a.log
#SBATCH --open-mode=append

# Nothing of the submitting shell: tokens in its environment would end in the scheduler's spool.
#SBATCH --export=NIL

umask 077
# bash loses one of two signals that arrive together. It ignores them; the worker hears them.
trap '' TERM USR1 USR2

# `module` and the like are functions that the login files define.
[ -r /etc/profile ] && . /etc/profile
# What the job gets of the submitting shell, the site and the experiment: these and no others.
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
export USER="${USER:-$(id -un)}" LOGNAME="${LOGNAME:-$(id -un)}"
export PATH=/usr/bin
module load cuda
# Steps get the environment of this script; without this they inherit "nothing" from above.
export SLURM_EXPORT_ENV=ALL

index=${SLURM_ARRAY_TASK_ID:-0}
# Of an array never its bare id: that is every task of it, ended ones too.
task=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$index}
task=${task:-$SLURM_JOB_ID}

# A task that is started again after the end has nothing to do.
[ -e /scratch/digits-7f3a/closed.json ] && exit 0

# The launch went well. From here on Slurm may requeue the task, after the death of a node, too.
scontrol update JobId="$task" Requeue=1

py -Pm hpcdet.worker /scratch/digits-7f3a --submission 1 --digest '' --index "$index"
code=$?

left="--index $index --restart ${SLURM_RESTART_COUNT:-0} --code $code"
# Does the trial go on in this very task? Yes after a notice, and after a worker that was killed;
# no once the task has come back a few times without getting anywhere.
if py -Pm hpcdet.worker.again /scratch/digits-7f3a --submission 1 $left; then
    # TERM stays ignored: a requeue ends the job, and with it the command that asks for it.
    # `Incomplete` leaves a canceled task canceled.
    if scontrol requeue Incomplete "$task"; then
        scontrol update JobId="$task" Requeue=0  # until it runs again, as above
        exit 85
    fi
fi
# A worker that ends by itself sees to it that others go on. One that was killed has told nobody:
# submit its successor, if nobody else does.
[ "$code" -eq 0 ] || py -Pm hpcdet.worker.handover /scratch/digits-7f3a --submission 1 $left
exit "$code"
