# Time against money, a point a plan that fits; the line joins those that no other beats in both, which are the first rows.
stats ARG1 using (note(strcol(1)), column(2)) skip 1 nooutput
set title ARG3
set xlabel "days"
set ylabel "US dollars, typical price"
eval range("x", STATS_min, STATS_max)
stats ARG1 using 3 skip 1 nooutput
eval range("y", STATS_min, STATS_max)
if (!wide(STATS_min, STATS_max)) { set yrange [STATS_min * 0.85:STATS_max * 1.1] }
set format "%.10g" # 0.1 days are not 100m
eval below(3)
plot ARG1 using ($4 > 0 ? $2 : NaN):3 skip 1 with lines lc rgb "black" lw 1.5 title "no plan beats these in both", \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) && $4 == 0 ? $2 : NaN):3 skip 1 \
    with points lc rgb hue(k) pt mark(k) ps 0.7 * dot notitle, \
    for [k=1:count] ARG1 using (strcol(1) eq word(names, k) ? $2 : NaN):($4 > 0 ? $3 : NaN) skip 1 \
    with points lc rgb hue(k) pt mark(k) ps 1.8 * dot notitle, \
    for [k=1:count] NaN with points lc rgb hue(k) pt mark(k) ps 1.5 * dot title word(names, k)
