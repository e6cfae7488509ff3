# Predicted against measured tokens/s of each GPU, a point a run; the band is 10 % to either side.
stats ARG1 using (note(strcol(1)), column(2)):3 skip 1 nooutput
least = (STATS_min_x < STATS_min_y ? STATS_min_x : STATS_min_y) * 0.8
most = (STATS_max_x > STATS_max_y ? STATS_max_x : STATS_max_y) * 1.25
stats ARG1 using (abs($3 / $2 - 1) <= 0.1 ? 1 : 0) skip 1 nooutput
set title ARG3
set xlabel "measured tokens/s per GPU"
set ylabel "predicted tokens/s per GPU"
set logscale xy
set format x "%.0s%c"
set format y "%.0s%c"
set xrange [least:most]
set yrange [least:most]
set samples 200
set key outside right top Left reverse
set label 1 sprintf("%.0f of %.0f runs in the band", STATS_sum, STATS_records) at graph 0.98, graph 0.04 right front
plot '+' using 1:($1 * 0.9):($1 * 1.1) with filledcurves lc rgb "#e6e6e6" title "within 10 %", \
    x with lines lc rgb "black" lw 1 title "predicted = measured", \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):3 skip 1 \
    with points lc rgb hue(k) pt mark(k) ps 1.1 * dot title word(names, k)
