# A lane a rank, a box a pass (lighter: of an odd chunk) with the number of its micro-batch; of a pair each pass has half of the lane.
kinds = "'forward' 'forward (odd)' 'backward' 'backward (odd)' 'input gradients' 'input gradients (odd)' \
'weight gradients' 'weight gradients (odd)'"
colours = "#0072B2 #56B4E9 #D55E00 #F2A36B #CC79A7 #E9BFD5 #009E73 #8FD3BD"
# Dark numbers on light boxes, light ones on dark.
inks = "#ffffff #000000 #ffffff #000000 #000000 #000000 #ffffff #000000"
stats ARG1 using (note(strcol(1)), $2) skip 1 nooutput
ranks = STATS_max + 1
stats ARG1 using 5 skip 1 nooutput
last = STATS_max > 0 ? STATS_max : 1
stats ARG1 using ($5 > $4 ? $5 - $4 : NaN) skip 1 nooutput
shortest = STATS_records ? STATS_min : last
stats ARG1 using 3 skip 1 nooutput
digits = STATS_max > 999 ? 4 : STATS_max > 99 ? 3 : STATS_max > 9 ? 2 : 1
shown = ""
do for [k=1:words(kinds)] {
    if (strstrt(names, "'" . word(kinds, k) . "'")) { shown = shown . " " . k }
}
kind(k) = word(kinds, int(word(shown, k)))
low(half) = half == 2 ? 0 : -0.42
high(half) = half == 1 ? 0 : 0.42
middle(half) = half == 1 ? -0.21 : half == 2 ? 0.21 : 0
set title ARG3
set xlabel "time (of a simulation in ms, else in the unit of the costs)"
set xrange [0:last]
set yrange [ranks - 0.4:-0.6]
unset grid
set ytics 1
if (ranks > 16) { set ytics 4 }
set format y "rank %.0f"
columns = plain ? 2 : 4 # as many names as a line of text has room for
eval below((words(shown) + columns - 1) / columns)
# A number where a pass has room for it, and lanes are high enough. The plain terminal has neither.
numbered(takes) = !plain && ranks <= 32 && takes / last * 1400 > 8.5 * digits
size = shortest / last * 1400 > 16 * digits && ranks <= 16 ? 12 : shortest / last * 1400 > 11 * digits ? 9 : 7
set style fill solid 1 border rgb "#ffffff"
box(k) = (strcol(1) eq kind(k) ? column(4) : NaN)
plot for [k=1:words(shown)] ARG1 \
    using (box(k)):2:4:5:($2 + low($6)):($2 + high($6)) \
    skip 1 with boxxyerror lc rgb word(colours, int(word(shown, k))) title kind(k), \
    for [k=1:words(shown)] ARG1 \
    using (numbered($5 - $4) && strcol(1) eq kind(k) ? ($4 + $5) / 2 : NaN):($2 + middle($6)):(sprintf("%.0f", $3)) \
    skip 1 with labels font sprintf(",%d", size) textcolor rgb word(inks, int(word(shown, k))) notitle
