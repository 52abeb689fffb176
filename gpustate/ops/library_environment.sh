# shellcheck shell=sh
# Sets what every program of a node program runs with.
LC_ALL=C
DEBIAN_FRONTEND=noninteractive
NEEDRESTART_SUSPEND=1
UCF_FORCE_CONFFOLD=1
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL DEBIAN_FRONTEND NEEDRESTART_SUSPEND UCF_FORCE_CONFFOLD PATH PROC SYS G R
umask 022
