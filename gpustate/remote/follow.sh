# shellcheck shell=sh
# Follows a journal from byte O until its program is gone, and prints N done or N died. A line on
# standard input asks the program to stop after its current step; the end of input asks for nothing.
# shellcheck disable=SC3067 # -O: every sh of Linux knows it
(read -r word && [ "$word" = stop ] && : >$R/stop) <&3 3<&- &
watcher=$!
exec 3<&-
polls=0
while [ ! -s $R/pid ] && [ $polls -lt 100 ]; do
  sleep 0.05
  polls=$((polls + 1))
done
if read -r pid <$R/pid && [ -O /proc/$pid ] && grep -qa "runs/$RUN/" /proc/$pid/cmdline; then
  tail -c +$((O + 1)) -f -s 0.05 --pid=$pid $R/journal
else
  tail -c +$((O + 1)) $R/journal
fi
ending=died
tail -n 1 $R/journal | grep -q '"e":"end"' && ending='done'
printf '\n%s %s\n' $N $ending
kill $watcher
exit 0
