# Device memory over one step, stacked by owner. A fourth argument marks the closed form's peak, in bytes.
columns = "3 5 11 4 6 7 8 9 10"
names = "'parameters' 'optimizer state' 'workspaces and temporaries' 'gradients' 'activations' 'logits and loss' \
'weights in compute dtype' 'all-gather buffers' 'gradient reduction buffers'"
colours = "#0072B2 #56B4E9 #999999 #009E73 #E69F00 #D55E00 #F0E442 #CC79A7 #333333"
GiB = 2.0**30
# What a step never holds has no place in the key.
# One pass finds it: a table may have a hundred thousand rows.
array most[words(columns)]
array place[words(columns)]
do for [i=1:words(columns)] { most[i] = 0; place[i] = int(word(columns, i)) }
look(i) = (column(place[i]) > most[i] ? most[i] = column(place[i]) : 0)
stats ARG1 using ((sum [i=1:words(columns)] look(i)) * 0 + $1):12 skip 1 nooutput
last_s = STATS_max_x
peak = STATS_max_y / GiB
shown = ""
do for [i=1:words(columns)] { if (most[i] > 0) { shown = shown . " " . i } }
do for [k=1:words(shown)] { place[k] = int(word(columns, int(word(shown, k)))) }
stacked(n) = sum [k=1:n] column(place[k])
set title ARG3
set xlabel "time of the step at which the device comes to it, ms"
set ylabel "tensors on the device, GiB"
set xrange [0:last_s * 1000]
set yrange [0:peak * 1.12]
if (!plain) { set grid noxtics ytics }
set key outside right center Left reverse spacing 1.3
set style fill solid 1 noborder
set label 1 sprintf("peak %.2f GiB", peak) at graph 0.01, first peak * 1.04 front
closed = ARGC > 3 ? real(ARG4) / GiB : 0
if (closed > 0) {
    set arrow 1 from graph 0, first closed to graph 1, first closed nohead dashtype 2 lc rgb "black" front
    set label 2 sprintf("closed form %.2f GiB", closed) at graph 0.99, first peak * 1.04 right front
}
n = words(shown)
how = plain ? "histeps" : "fillsteps"
plot for [i=n:1:-1] ARG1 using ($1 * 1000):(stacked(i) / GiB) skip 1 with @how \
    lc rgb word(colours, int(word(shown, i))) title word(names, int(word(shown, i)))
