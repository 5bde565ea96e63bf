#!/bin/bash
# Who this is. The tag finds the job again if its submitter dies before noting the id.
#PBS -N digits-7f3a-1
#PBS -v HPCDET_TAG=hpcdet:digits-7f3a:1-ab12

# The size of one worker: a chunk for each host, a process for each rank.
#PBS -l select=2:ncpus=6:mpiprocs=2:mem=6144mb
#PBS -l place=scatter
#PBS -l walltime=27:46:40

# Where.
#PBS -q gpu

# Whether the server may run it again, after a preemption or the loss of its host (else a new job
# goes on); never a checkpoint of PBS's own; its output is what this script makes of it.
#PBS -r n
#PBS -c n
#PBS -j oe
#PBS -o /dev/null
#PBS -W umask=077

umask 077
# bash loses one of two signals that arrive together. It ignores them; the worker hears them.
trap '' TERM USR1 USR2

# PBS starts jobs at home. A shared folder may come into sight late.
until cd /scratch/digits-7f3a 2>/dev/null || [ "$SECONDS" -ge 180 ]; do sleep 1; done
exec >>/scratch/digits-7f3a/jobs/0001.logs/"$PBS_JOBID".log 2>&1

# `module` and the like are functions that the login files define.
[ -r /etc/profile ] && . /etc/profile
# What the job gets of the submitting shell, the site and the experiment: these and no others.
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
export USER="${USER:-$(id -un)}" LOGNAME="${LOGNAME:-$(id -un)}"
export PATH=/usr/bin
module load cuda

# A task that is started again after the end has nothing to do.
[ -e /scratch/digits-7f3a/closed.json ] && exit 0

index=${PBS_ARRAY_INDEX:-0}
py -Pm hpcdet.worker /scratch/digits-7f3a --submission 1 --digest '' --index "$index" </dev/null &
worker=$!
wait "$worker"
code=$?

# A worker that ends by itself sees to it that others go on. One that was killed has told
# nobody: submit its successor, if nobody else does.
case $code in
    0) ;;
    *) py -Pm hpcdet.worker.handover /scratch/digits-7f3a --submission 1 --index "$index" --pid "$worker" --code "$code" </dev/null ;;
esac
exit "$code"
