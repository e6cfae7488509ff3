# Tokens/s and scaling efficiency against GPUs, a line a plan; thin grey lines are ideal.
stats ARG1 using (note(strcol(1)), column(2)) skip 1 nooutput
fewest = STATS_min; most = STATS_max
stats ARG1 using 4 skip 1 nooutput
best = STATS_max
stats ARG1 using 5:3 skip 1 nooutput
set xlabel "GPUs"
set logscale x 2
set xrange [fewest * 0.93:most * 1.07]
set multiplot layout 1,2 margins 0.09,0.97,foot + 0.105,0.87 spacing 0.11,0 title ARG3
eval below(3)
eval range("y", STATS_min_y, STATS_max_x > STATS_max_y ? STATS_max_x : STATS_max_y)
what = "tokens/s of the whole job"
if (plain) { set title what } else { set ylabel what }
plot for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):5 skip 1 \
    with lines lc rgb "#999999" lw 1 dt 3 title (k == 1 ? "ideal: proportional to GPUs" : ""), \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):3 skip 1 \
    with linespoints lc rgb hue(k) dt dash(k) pt mark(k) ps 1.3 * dot lw 1.5 title word(names, k)
unset logscale y; set logscale x 2
set format y "%g"
unset key
what = "scaling efficiency, %"
if (plain) { set title what } else { set ylabel what }
set yrange [0:(best > 1 ? best * 105 : 105)]
# The ideal as often as to the left, for text tells lines apart by their number alone.
plot for [k=1:count] 100 with lines lc rgb "#999999" lw 1 dt 3 notitle, \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):($4 * 100) skip 1 \
    with linespoints lc rgb hue(k) dt dash(k) pt mark(k) ps 1.3 * dot lw 1.5
unset multiplot
