"""The configuration files of a private Slurm, as pure text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NODES = ("n1", "n2", "n3", "n4")
CPUS_PER_NODE = 8
MEMORY_PER_NODE_MB = 8000


@dataclass(frozen=True)
class Options:
    """In what a private Slurm may differ.

    Attributes:
        grace_s: GraceTime of the partition ``batch``; ``patient`` always has 180, ``cancel`` 0.
        accounting: with slurmdbd on a private MariaDB; without, ``sacct`` answers nothing.
        send_user_signal: preempted jobs get the signal of ``--signal`` instead of TERM.
        max_array: MaxArraySize.
        max_submit: jobs that the user may have at once; needs accounting.
        kill_wait_s: seconds from TERM to KILL.
        slurmd_timeout_s: seconds of silence after which a node is called down.
        prolog: a Prolog that fails where ``fail.NODE`` lies in the cluster's folder.
        submit_filter: text of a ``job_submit.lua``; "": none.
        requeue: JobRequeue: jobs may come back under their ids.
        cloud: nodes exist only while a job needs them: Slurm starts and ends their ``slurmd``.
    """

    grace_s: int = 0
    accounting: bool = True
    send_user_signal: bool = False
    max_array: int = 1001
    max_submit: int | None = None
    kill_wait_s: int = 6
    slurmd_timeout_s: int = 600
    prolog: bool = False
    submit_filter: str = ""
    requeue: bool = True
    cloud: bool = False


@dataclass(frozen=True)
class Ports:
    """Where the daemons listen; ``nodes`` in the order of ``NODES``."""

    controller: int
    database: int
    nodes: tuple[int, ...]


def slurm_conf(root: Path, name: str, host: str, ports: Ports, options: Options) -> str:
    """``slurm.conf``: patient about a slow machine, quick about scheduling."""
    lines = [
        f"ClusterName={name}",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports.controller}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        # cred_expire: a requeued job may start again so many seconds later (120 by default).
        f"AuthInfo=socket={root}/munge.socket,cred_expire=8",
        "CredType=cred/munge",
        f"StateSaveLocation={root}/state",
        f"SlurmdSpoolDir={root}/spool.%n",
        f"SlurmctldPidFile={root}/slurmctld.pid",
        f"SlurmdPidFile={root}/slurmd.%n.pid",
        f"SlurmctldLogFile={root}/slurmctld.log",
        f"SlurmdLogFile={root}/slurmd.%n.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=verbose",
        "DebugFlags=NO_CONF_HASH",
        "SlurmdParameters=config_overrides",
        "MpiDefault=none",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        "DefMemPerCPU=500",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=sched_interval=2,sched_min_interval=100000,"
        "bf_interval=1,batch_sched_delay=0,default_queue_depth=1000",
        "PriorityType=priority/basic",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        f"JobRequeue={int(options.requeue)}",
        f"KillWait={options.kill_wait_s}",
        f"MaxArraySize={options.max_array}",
        "MinJobAge=300",
        "InactiveLimit=0",
        "WaitTime=0",
        "KillOnBadExit=0",
        "ReturnToService=2",
        # A machine that is ten times slower than usual must not look like one with dead nodes.
        f"SlurmdTimeout={options.slurmd_timeout_s}",
        "SlurmctldTimeout=600",
        "MessageTimeout=90",
        "TCPTimeout=30",
        "BatchStartTimeout=120",
        "UnkillableStepTimeout=300",
        "JobCompType=jobcomp/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=30",
    ]
    if options.prolog:
        lines += [f"Prolog={root}/prolog"]
    if options.submit_filter:
        lines += ["JobSubmitPlugins=lua"]
    if options.send_user_signal:
        lines += ["SlurmctldParameters=preempt_send_user_signal"]
    if options.cloud:
        lines += [
            f"ResumeProgram={root}/resume",
            f"SuspendProgram={root}/suspend",
            "ResumeTimeout=600",
            "SuspendTimeout=10",
            "SuspendTime=600",
            "ResumeRate=0",
            "PrivateData=cloud",
        ]
    if options.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={ports.database}",
            f"AccountingStoragePass={root}/munge.socket",
            "AccountingStorageEnforce=associations,limits",
            "AccountingStoreFlags=job_comment",
        ]
    else:
        lines += ["AccountingStorageType=accounting_storage/none"]
    lines += [
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
        f" CPUs={CPUS_PER_NODE} RealMemory={MEMORY_PER_NODE_MB}"
        f" State={'CLOUD' if options.cloud else 'UNKNOWN'}"
        for node, port in zip(NODES, ports.nodes, strict=True)
    ]
    low = f"Nodes={','.join(NODES)} PriorityTier=1 MaxTime=INFINITE DefaultTime=60"
    lines += [
        f"PartitionName=batch Default=YES {low} PreemptMode=REQUEUE GraceTime={options.grace_s}",
        f"PartitionName=patient {low} PreemptMode=REQUEUE GraceTime=180",
        f"PartitionName=cancel {low} PreemptMode=CANCEL GraceTime=0",
        f"PartitionName=short {low.replace('INFINITE', '5').replace('Time=60', 'Time=5')}",
        f"PartitionName=urgent {low.replace('Tier=1', 'Tier=10')} PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"


def slurmdbd_conf(root: Path, host: str, ports: Ports) -> str:
    """``slurmdbd.conf``; the database's socket is given by the environment."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={root}/munge.socket",
            f"DbdHost={host}",
            "DbdAddr=127.0.0.1",
            f"DbdPort={ports.database}",
            "SlurmUser=root",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=root",
            "StorageLoc=slurm",
            f"PidFile={root}/slurmdbd.pid",
            f"LogFile={root}/slurmdbd.log",
            "DebugLevel=info",
            "",
        ]
    )
