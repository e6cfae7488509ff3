# Fitted against measured times of a machine: how far each fit is off, a point a measured row; the band is 5 % to either side.
stats ARG1 using (note(strcol(1)), column(2)) skip 1 nooutput
least = STATS_min * 0.5
most = STATS_max * 2
stats ARG1 using 3 skip 1 nooutput
far = abs(STATS_min) > abs(STATS_max) ? abs(STATS_min) : abs(STATS_max)
far = far < 6 ? 6 : far
stats ARG1 using (abs($3) <= 5 ? 1 : 0) skip 1 nooutput
set title ARG3
set xlabel "measured time"
set ylabel "fit above (+) or below (-) it, %"
set logscale x
set format x "%.0s %cs"
set xrange [least:most]
set yrange [-1.1 * far:1.1 * far]
set samples 200
set key outside right top Left reverse
set label 1 sprintf("%.0f of %.0f rows in the band", STATS_sum, STATS_records) at graph 0.98, graph 0.04 right front
plot '+' using 1:(-5):(5) with filledcurves lc rgb "#e6e6e6" title "within 5 %", \
    0 with lines lc rgb "black" lw 1 notitle, \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):3 skip 1 \
    with points lc rgb hue(k) pt mark(k) ps 0.9 * dot title word(names, k)
