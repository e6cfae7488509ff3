# What a step's time goes into, a bar a plan.
stats ARG1 using (note(strcol(1)), column(2)) skip 1 nooutput
plans = STATS_records
unit = STATS_max < 1 ? 1000.0 : 1.0
parts = "'matmuls' 'attention' 'memory-bound kernels' 'loss' 'launch gaps' 'optimizer' 'exposed communication' 'exposed offload' \
'pipeline bubble' 'waiting for the slowest rank'"
colours = "#0072B2 #56B4E9 #F0E442 #009E73 #d9d9d9 #E69F00 #D55E00 #CC79A7 #333333 #999999"
part(k) = valid(k) ? column(k) : 0
upto(k) = (sum [i=3:k] part(i)) * unit
height(row) = plans - row
shown = ""
do for [k=3:12] {
    stats ARG1 using (part(k)) skip 1 nooutput
    if (STATS_max > 0) { shown = shown . " " . k }
}
stats ARG1 using (upto(12)) skip 1 nooutput
set title ARG3
set xlabel unit > 1 ? "ms of one optimizer step" : "s of one optimizer step"
set xrange [0:STATS_max * 1.12]
set yrange [0.4:plans + 0.6]
if (!plain) { set grid noytics xtics }
eval below(4)
thick = plans > 12 ? 0.4 : 0.32
plot for [i=1:words(shown)] ARG1 \
    using (upto(int(word(shown, i)))):(height($0)):(upto(int(word(shown, i)) - 1)):(upto(int(word(shown, i)))):(height($0) - thick):(height($0) + thick):ytic(strcol(1)) \
    skip 1 with boxxyerror lc rgb word(colours, int(word(shown, i)) - 2) title word(parts, int(word(shown, i)) - 2), \
    ARG1 using (upto(12)):(height($0)):(sprintf("%.4g", upto(12))) skip 1 with labels left offset 0.6,0 notitle
