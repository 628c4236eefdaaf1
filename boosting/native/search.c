/* Kernels of the split search and of what histograms travel as. The Python functions of the same
   names say what each does and return the same bytes. */
#include "../../crypto/native/common.h"

/* How sums become weights and gains: `kernels.Rules`, in its order. */
#define RULES                                                                                      \
    f8 scale_g, f8 scale_h, f8 mcw, f8 lam, f8 alpha, f8 max_delta_step, i8 constrained,           \
        i8 max_cat_to_onehot, i8 max_cat_threshold
#define OF_RULES                                                                                   \
    {scale_g, scale_h, mcw, lam, alpha, max_delta_step, constrained, max_cat_to_onehot,            \
     max_cat_threshold}

typedef struct {
    f8 scale_g, scale_h, mcw, lam, alpha, max_delta_step;
    i8 constrained, max_cat_to_onehot, max_cat_threshold;
} rules;

INLINE f8 soft_threshold(f8 g, f8 alpha)
{
    return g > alpha ? g - alpha : g < -alpha ? g + alpha : 0.0;
}

INLINE f4 weight_of(f8 g, f8 h, f8 least, const rules *r)
{
    if (h < least || h <= 0.0) return 0.0f;
    f8 exact = -soft_threshold(g, r->alpha) / (h + r->lam), limit = r->max_delta_step;
    if (limit != 0.0 && fabs(exact) > limit) exact = exact > 0 ? limit : -limit;
    return (f4)exact;
}

INLINE f4 clipped(f4 w, const rules *r, f4 low, f4 high)
{
    if (!r->constrained) return w;
    w = low > w ? low : w;
    return high < w ? high : w;
}

INLINE f4 score_of(f8 g, f8 h, f4 w, const rules *r, int by_weight)
{
    if (h <= 0.0) return 0.0f;
    if (by_weight) {
        f4 g32 = (f4)g, h32 = (f4)h, lam32 = (f4)r->lam;
        return -(2.0f * g32 * w + (h32 + lam32) * (w * w));
    }
    f8 t = soft_threshold(g, r->alpha);
    return (f4)(t * t / (h + r->lam));
}

/* Whether bins of one gradient and one hessian in turn can be: no branch, eight values a step. */
WIDE static int possible_pairs(const i8 *bins, i8 n, i8 grad, i8 hess, i8 total, int shift)
{
    i8 low[8] = {0}, high[8] = {0}, whole[8] = {0}, sum = 0, i = 0;
    for (; i + 8 <= 2 * n; i += 8)
        for (int j = 0; j < 8; j++) {
            i8 one = bins[i + j];
            low[j] = one < low[j] ? one : low[j];
            high[j] = one > high[j] ? one : high[j];
            whole[j] = (i8)((u8)whole[j] + (u8)(one >> shift));
        }
    for (int j = 0; i + j < 2 * n; j++) {
        i8 one = bins[i + j];
        low[j] = least_of(low[j], one), high[j] = greatest_of(high[j], one);
        whole[j] = (i8)((u8)whole[j] + (u8)(one >> shift));
    }
    for (int j = 0; j < 8; j += 2) {
        if (low[j] < -grad || high[j] > grad || low[j + 1] < 0 || high[j + 1] > hess) return 0;
        sum = (i8)((u8)sum + (u8)whole[j + 1]);
    }
    return sum <= total >> shift;
}

EXPORT i8 possible(const i8 **hists, i8 n_hists, i8 n_bins, i8 n_values, const i8 *totals,
                   i8 n_totals, i8 n_sums, const i8 *offsets, i8 n_offsets, i8 most_grad,
                   i8 most_hess)
{
    (void)n_bins, (void)n_totals;
    for (i8 s = 0; s < n_hists; s++)
        for (i8 c = 0; c < n_values; c += 2) {
            const i8 *sums = hists[s];
            i8 total = totals[s * n_sums + c + 1];
            int shift = total < (i8)1 << 47 ? 0 : 16;
            for (i8 k = 0; k < n_offsets - 1; k++) {
                i8 most = least_of(total, most_hess);
                if (n_values == 2) {
                    const i8 *bins = sums + 2 * offsets[k];
                    i8 n = offsets[k + 1] - offsets[k];
                    if (!possible_pairs(bins, n, most_grad, most, total, shift)) return 0;
                    continue;
                }
                i8 low = 0, high = 0, lowest = 0, highest = 0, whole = 0;
                for (i8 b = offsets[k]; b < offsets[k + 1]; b++) {
                    i8 g = sums[b * n_values + c], h = sums[b * n_values + c + 1];
                    low = least_of(low, g), high = greatest_of(high, g);
                    lowest = least_of(lowest, h), highest = greatest_of(highest, h);
                    whole = (i8)((u8)whole + (u8)(h >> shift));
                }
                if (low < -most_grad || high > most_grad || lowest < 0) return 0;
                if (highest > most || whole > total >> shift) return 0;
            }
        }
    return 1;
}

WIDE static void changes_free(const i8 *grad, const i8 *hess, i8 n, i8 G, i8 H, f8 scale_g,
                              f8 scale_h, f8 mcw, f8 lam, f8 alpha, f4 parent, f4 *out)
{
    for (i8 i = 0; i < n; i++) {
        f8 Gl = (f8)grad[i] * scale_g, Hl = (f8)hess[i] * scale_h;
        f8 Gr = (f8)(G - grad[i]) * scale_g, Hr = (f8)(H - hess[i]) * scale_h;
        f8 la = Gl - alpha, lb = Gl + alpha, ra = Gr - alpha, rb = Gr + alpha;
        f8 tl = (0.0 > la ? 0.0 : la) + (0.0 < lb ? 0.0 : lb);
        f8 tr = (0.0 > ra ? 0.0 : ra) + (0.0 < rb ? 0.0 : rb);
        f4 vl = (f4)(tl * tl / (Hl + lam)), vr = (f4)(tr * tr / (Hr + lam));
        vl = Hl > 0.0 ? vl : 0.0f;
        vr = Hr > 0.0 ? vr : 0.0f;
        int light = (Hl < mcw) | (Hr < mcw) | (hess[i] < 0);
        f4 change = vl + vr - parent;
        out[i] = light | !(change < INFINITY) ? -INFINITY : change;
    }
}

static void changes_of(const i8 *grad, const i8 *hess, i8 n, const i8 *node, const rules *r,
                       i8 direction, const f4 *bounds, f4 parent, f4 *out)
{
    if (!(r->constrained || r->max_delta_step != 0.0)) {
        changes_free(grad, hess, n, node[0], node[1], r->scale_g, r->scale_h, r->mcw, r->lam,
                     r->alpha, parent, out);
        return;
    }
    for (i8 i = 0; i < n; i++) {
        f8 Gl = (f8)grad[i] * r->scale_g, Hl = (f8)hess[i] * r->scale_h;
        f8 Gr = (f8)(node[0] - grad[i]) * r->scale_g, Hr = (f8)(node[1] - hess[i]) * r->scale_h;
        f4 wl = clipped(weight_of(Gl, Hl, r->mcw, r), r, bounds[0], bounds[1]);
        f4 wr = clipped(weight_of(Gr, Hr, r->mcw, r), r, bounds[0], bounds[1]);
        out[i] = -INFINITY;
        if (Hl < r->mcw || Hr < r->mcw || hess[i] < 0) continue;
        if ((direction > 0 && wl > wr) || (direction < 0 && wl < wr)) continue;
        f4 both = score_of(Gl, Hl, wl, r, 1) + score_of(Gr, Hr, wr, r, 1), change = both - parent;
        if (change < INFINITY) out[i] = change;
    }
}

/* The first position of the greatest change if it is above `least`, or -1. As integers, floats
   that are not negative are in their order. */
WIDE static i8 greatest_change(const f4 *change, i8 n, f4 least)
{
    i4 floor_key, top;
    memcpy(&floor_key, &least, 4);
    top = floor_key;
    const i4 *keys = (const i4 *)(const void *)change;
    for (i8 i = 0; i < n; i++) top = keys[i] > top ? keys[i] : top;
    if (top > floor_key)
        for (i8 i = 0; i < n; i++)
            if (keys[i] == top) return i;
    return -1;
}

INLINE int scan_bins_to(const i8 *bins, i8 n_bins, const i8 *node, int down, i8 *grad, i8 *hess)
{
    i8 g = 0, h = 0, any = 0;
    for (i8 i = 0; i < n_bins; i++) {
        const i8 *own = bins + 2 * (down ? n_bins - 1 - i : i);
        i8 dg = own[0], dh = own[1];
        g += dg, h += dh, any |= dg | dh;
        grad[i] = down ? node[0] - g : g;
        hess[i] = any == 0 ? -1 : down ? node[1] - h : h;
    }
    return g != node[0] || h != node[1];
}

static int scan_bins(const i8 *bins, i8 n_bins, const i8 *own_node, int down, i8 *grad, i8 *hess)
{
    const i8 node[2] = {own_node[0], own_node[1]};
    return down ? scan_bins_to(bins, n_bins, node, 1, grad, hess)
                : scan_bins_to(bins, n_bins, node, 0, grad, hess);
}

static void scan_order(const i8 *bins, const i8 *order, i8 n_order, const i8 *node, int down,
                       i8 n_steps, i8 *grad, i8 *hess)
{
    i8 g = 0, h = 0;
    for (i8 i = 0; i < n_steps; i++) {
        const i8 *own = bins + 2 * order[down ? n_order - 1 - i : i];
        g += own[0], h += own[1];
        grad[i] = down ? g : node[0] - g;
        hess[i] = down ? h : node[1] - h;
    }
}

static void scan_single(const i8 *bins, i8 n_bins, const i8 *node, i8 *grad, i8 *hess)
{
    i8 g = 0, h = 0;
    for (i8 b = 0; b < n_bins; b++) g += bins[2 * b], h += bins[2 * b + 1];
    for (i8 b = 0; b < n_bins; b++)
        for (i8 missing = 0; missing < 2; missing++) {
            grad[2 * b + missing] = node[0] - bins[2 * b] - missing * (node[0] - g);
            hess[2 * b + missing] = node[1] - bins[2 * b + 1] - missing * (node[1] - h);
        }
}

SORT_POSITIONS(f4)

EXPORT i8 find_scalar(const i8 **hists, i8 n_hists, i8 n_hist, i8 two, i8 first, i8 stop,
                      const i8 *totals, i8 n_nodes, i8 also_two, const i8 *offsets, i8 n_offsets, const u1 *categorical,
                      i8 n_used, const i8 *monotone, i8 n_monotone, const u1 *allowed,
                      i8 n_allowed, i8 n_allowed_used, const f4 *bounds, i8 n_bounds, i8 four,
                      RULES, f4 *gain, i8 n_gain, i8 *used, i8 n_best, i8 *last_left,
                      i8 n_last_left, u1 *default_left, i8 n_default_left, i8 *left,
                      i8 n_left, i8 width, u1 *goes_right, i8 n_goes_right, i8 widest_code)
{
    rules own_rules = OF_RULES, *r = &own_rules;
    (void)n_hists, (void)n_hist, (void)two, (void)n_nodes, (void)also_two, (void)n_offsets, (void)n_monotone;
    (void)n_allowed, (void)n_bounds, (void)n_gain, (void)n_best, (void)n_last_left;
    (void)n_default_left, (void)n_left, (void)n_goes_right;
    i8 widest = 1;
    for (i8 k = 0; k < n_used; k++) widest = greatest_of(widest, offsets[k + 1] - offsets[k]);
    i8 *grad = malloc((size_t)widest * (8 * 6 + 4 * 3));
    if (!grad) return NO_MEMORY;
    i8 *hess = grad + 2 * widest, *order = hess + 2 * widest, *spare = order + widest;
    f4 *change = (f4 *)(void *)(spare + widest), *weights = change + 2 * widest;
    for (i8 s = first; s < stop; s++) {
        const i8 *node = totals + 2 * s;
        const f4 *own_bounds = bounds + four * s;
        f8 G = (f8)node[0] * scale_g, H = (f8)node[1] * scale_h;
        f4 own = clipped(weight_of(G, H, mcw, r), r, own_bounds[2], own_bounds[3]);
        f4 parent = score_of(G, H, own, r, constrained || max_delta_step != 0.0), best = 0.0f;
        const i8 *hist = hists[s];
        for (i8 k = 0; k < n_used; k++) {
            if (!allowed[s * n_allowed_used + k]) continue;
            const i8 *bins = hist + 2 * offsets[k];
            i8 n_bins = offsets[k + 1] - offsets[k];
            int sorted = categorical[k] && n_bins >= max_cat_to_onehot && n_bins > 0;
            if (sorted) {
                for (i8 b = 0; b < n_bins; b++)
                    weights[b] = weight_of((f8)bins[2 * b] * scale_g, (f8)bins[2 * b + 1] * scale_h,
                                           mcw, r);
                sort_positions_f4(weights, n_bins, order, spare);
            }
            int n_scans = 2;
            for (int scan = 0; scan < n_scans; scan++) {
                i8 n_steps = n_bins;
                if (!categorical[k]) {
                    if (!scan_bins(bins, n_bins, node, scan, grad, hess)) n_scans = 1;
                } else if (sorted) {
                    n_steps = greatest_of(least_of(max_cat_threshold, n_bins) - 1, 0);
                    scan_order(bins, order, n_bins, node, scan, n_steps, grad, hess);
                } else {
                    n_steps = 2 * n_bins;
                    n_scans = 1;
                    scan_single(bins, n_bins, node, grad, hess);
                }
                changes_of(grad, hess, n_steps, node, r, monotone[k], own_bounds, parent, change);
                i8 found = greatest_change(change, n_steps, best);
                if (found < 0) continue;
                best = change[found];
                used[s] = k;
                left[s * width] = grad[found], left[s * width + 1] = hess[found];
                if (!categorical[k]) {
                    last_left[s] = scan == 0 ? found : n_bins - 2 - found;
                    default_left[s] = scan == 1;
                    continue;
                }
                u1 *codes = goes_right + s * widest_code;
                last_left[s] = 0;
                memset(codes, 0, (size_t)widest_code);
                if (sorted) {
                    i8 n_right = scan == 0 ? found + 1 : n_bins - 1 - found;
                    default_left[s] = scan == 0;
                    for (i8 i = 0; i < n_right; i++) codes[order[i]] = 1;
                } else {
                    default_left[s] = (found & 1) == 0;
                    codes[found >> 1] = 1;
                }
            }
        }
        gain[s] = best;
    }
    free(grad);
    return 0;
}

static f8 vector_score(const i8 *sums, i8 n, const rules *r)
{
    f8 total = 0.0;
    for (i8 c = 0; c < n; c += 2) {
        f8 h = (f8)sums[c + 1] * r->scale_h;
        if (h > 0.0) {
            f8 t = soft_threshold((f8)sums[c] * r->scale_g, r->alpha);
            total += t * t / (h + r->lam);
        }
    }
    return total;
}

static f8 vector_hess(const i8 *sums, i8 n, f8 scale_h)
{
    i8 total = 0;
    for (i8 c = 1; c < n; c += 2) total += sums[c];
    return (f8)total * scale_h;
}

EXPORT i8 find_vector(const i8 **hists, i8 n_hists, i8 n_hist, i8 n_values, i8 first, i8 stop,
                      const i8 *totals, i8 n_nodes, i8 n_totals, const i8 *offsets, i8 n_offsets, const u1 *categorical,
                      i8 n_used, const i8 *monotone, i8 n_monotone, const u1 *allowed,
                      i8 n_allowed, i8 n_allowed_used, const f4 *bounds, i8 n_bounds, i8 four,
                      RULES, f4 *gain, i8 n_gain, i8 *used, i8 n_best, i8 *last_left,
                      i8 n_last_left, u1 *default_left, i8 n_default_left, i8 *left,
                      i8 n_left, i8 width, u1 *goes_right, i8 n_goes_right, i8 widest_code)
{
    rules own_rules = OF_RULES, *r = &own_rules;
    (void)n_hists, (void)n_hist, (void)n_nodes, (void)n_totals, (void)n_offsets, (void)monotone, (void)n_monotone;
    (void)n_allowed, (void)bounds, (void)n_bounds, (void)four, (void)n_gain, (void)n_best;
    (void)n_last_left, (void)n_default_left, (void)n_left, (void)n_goes_right;
    i8 *run = malloc(8 * 3 * (size_t)(n_values + 1));
    if (!run) return NO_MEMORY;
    i8 *rest = run + n_values, *present = rest + n_values;
    for (i8 s = first; s < stop; s++) {
        const i8 *node = totals + n_values * s;
        const i8 *hist = hists[s];
        f8 parent = vector_score(node, n_values, r);
        f4 best = 0.0f;
        for (i8 k = 0; k < n_used; k++) {
            if (!allowed[s * n_allowed_used + k]) continue;
            const i8 *bins = hist + n_values * offsets[k];
            i8 n_bins = offsets[k + 1] - offsets[k];
            int any_missing = 0;
            memset(present, 0, 8 * (size_t)n_values);
            for (i8 b = 0; b < n_bins; b++)
                for (i8 c = 0; c < n_values; c++) present[c] += bins[b * n_values + c];
            for (i8 c = 0; c < n_values; c++) any_missing |= present[c] != node[c];
            int n_scans = !categorical[k] && any_missing ? 2 : 1;
            i8 n_steps = categorical[k] ? 2 * n_bins : n_bins;
            for (int scan = 0; scan < n_scans; scan++) {
                int scanned_left = 0;
                memset(run, 0, 8 * (size_t)n_values);
                for (i8 step = 0; step < n_steps; step++) {
                    i8 b = categorical[k] ? step >> 1 : scan == 0 ? step : n_bins - 1 - step;
                    if (categorical[k]) {
                        for (i8 c = 0; c < n_values; c++)
                            run[c] = bins[b * n_values + c] + (step & 1 ? node[c] - present[c] : 0);
                    } else {
                        scanned_left = scan == 0;
                        for (i8 c = 0; c < n_values; c++) run[c] += bins[b * n_values + c];
                    }
                    for (i8 c = 0; c < n_values; c++) rest[c] = node[c] - run[c];
                    if (vector_hess(run, n_values, scale_h) < mcw) continue;
                    if (vector_hess(rest, n_values, scale_h) < mcw) continue;
                    f4 change = (f4)(vector_score(run, n_values, r) +
                                     vector_score(rest, n_values, r) - parent);
                    if (!(change > best && change < INFINITY)) continue;
                    best = change;
                    used[s] = k;
                    memcpy(left + s * width, scanned_left ? run : rest, 8 * (size_t)n_values);
                    if (categorical[k]) {
                        last_left[s] = 0;
                        default_left[s] = (step & 1) == 0;
                        memset(goes_right + s * widest_code, 0, (size_t)widest_code);
                        goes_right[s * widest_code + b] = 1;
                    } else {
                        last_left[s] = scan == 0 ? b : b - 1;
                        default_left[s] = scan == 1;
                    }
                }
            }
        }
        gain[s] = best;
    }
    free(run);
    return 0;
}

EXPORT void weigh(const i8 *sums, i8 n, i8 n_values, RULES, const f4 *bounds, i8 n_bounds, i8 width,
                  f4 *out, i8 n_out, i8 n_outputs)
{
    rules own_rules = OF_RULES, *r = &own_rules;
    (void)n_bounds, (void)n_out;
    for (i8 s = 0; s < n; s++) {
        const i8 *own = sums + s * n_values;
        f8 least = vector_hess(own, n_values, scale_h) >= mcw ? 0.0 : INFINITY;
        for (i8 c = 0; c < n_outputs; c++)
            out[s * n_outputs + c] =
                clipped(weight_of((f8)own[2 * c] * scale_g, (f8)own[2 * c + 1] * scale_h, least, r),
                        r, bounds[s * width], bounds[s * width + 1]);
    }
}

EXPORT void gains_between(const i8 *side, i8 two, i8 n, const i8 *total, i8 n_total, RULES,
                          i8 direction, const f4 *bounds, i8 n_bounds, f4 *out, i8 n_out)
{
    rules own_rules = OF_RULES, *r = &own_rules;
    (void)two, (void)n_total, (void)n_bounds, (void)n_out;
    f8 G = (f8)total[0] * scale_g, H = (f8)total[1] * scale_h;
    f4 own = clipped(weight_of(G, H, mcw, r), r, bounds[2], bounds[3]);
    changes_of(side, side + n, n, total, r, direction, bounds, score_of(G, H, own, r, 1), out);
}

EXPORT i8 gains(const i8 *left, i8 n, i8 n_values, const i8 *total, i8 n_total, RULES, f4 *out,
                i8 n_out)
{
    rules own_rules = OF_RULES, *r = &own_rules;
    int by_weight = max_delta_step != 0.0;
    i8 *right = malloc(8 * (size_t)(n_values + 1));
    if (!right) return NO_MEMORY;
    (void)n_total, (void)n_out;
    for (i8 i = 0; i < n; i++) {
        const i8 *own = left + i * n_values;
        for (i8 c = 0; c < n_values; c++) right[c] = total[c] - own[c];
        if (vector_hess(own, n_values, scale_h) < mcw ||
            vector_hess(right, n_values, scale_h) < mcw) {
            out[i] = -INFINITY;
        } else if (n_values == 2) {
            const i8 *parts[3] = {own, right, total};
            f4 value[3];
            for (int part = 0; part < 3; part++) {
                f8 G = (f8)parts[part][0] * scale_g, H = (f8)parts[part][1] * scale_h;
                value[part] = score_of(G, H, weight_of(G, H, mcw, r), r, by_weight);
            }
            out[i] = value[0] + value[1] - value[2];
        } else {
            out[i] = (f4)(vector_score(own, n_values, r) + vector_score(right, n_values, r) -
                          vector_score(total, n_values, r));
        }
    }
    free(right);
    return 0;
}

/* ---- what histograms travel as ---- */

EXPORT void count_kept(const u1 *kept, i8 n, i8 n_bins, const i8 *offsets, i8 n_offsets, i8 *out,
                       i8 n_out, i8 n_used)
{
    (void)n_offsets, (void)n_out;
    for (i8 i = 0; i < n; i++)
        for (i8 k = 0; k < n_used; k++) {
            i8 total = 0;
            for (i8 b = offsets[k]; b < offsets[k + 1]; b++) total += kept[i * n_bins + b];
            out[i * n_used + k] = total;
        }
}

EXPORT void derive(u1 *kept, i8 n, i8 n_bins, const i8 *offsets, i8 n_offsets, const i8 *chosen,
                   i8 n_used, i8 *derived, i8 n_derived, i8 width, i8 not_derived)
{
    (void)n_offsets, (void)n_derived;
    for (i8 i = 0; i < n; i++, kept += n_bins, derived += width)
        for (i8 k = 0; k < n_used; k++) {
            if (chosen[k] == not_derived) continue;
            i8 at = offsets[k] + chosen[k];
            if (!kept[at]) {
                at = offsets[k + 1] - 1;
                while (at >= offsets[k] && !kept[at]) at--;
            }
            if (at >= offsets[k]) {
                kept[at] = 0;
                derived[k] = at;
            }
        }
}

EXPORT void greatest_bins(const i8 *histogram, i8 n_bins, i8 n_values, const i8 *offsets,
                          i8 n_offsets, i8 *out, i8 n_used)
{
    (void)n_bins, (void)n_offsets;
    for (i8 k = 0; k < n_used; k++) {
        i8 most = -1;
        for (i8 b = offsets[k]; b < offsets[k + 1]; b++) {
            i8 total = 0;
            for (i8 c = 1; c < n_values; c += 2) total += histogram[b * n_values + c];
            if (total > most) most = total, out[k] = b - offsets[k];
        }
    }
}

EXPORT void complete(i8 *histograms, i8 n, i8 n_bins, i8 n_values, const i8 *totals, i8 n_totals,
                     i8 width, const i8 *offsets, i8 n_offsets, const i8 *derived, i8 n_derived,
                     i8 n_used)
{
    (void)n_totals, (void)n_offsets, (void)n_derived;
    for (i8 i = 0; i < n; i++, histograms += n_bins * n_values)
        for (i8 k = 0; k < n_used; k++) {
            i8 at = derived[i * n_used + k];
            if (at < 0) continue;
            for (i8 c = 0; c < n_values; c++) {
                u8 rest = (u8)totals[i * width + c];
                for (i8 b = offsets[k]; b < offsets[k + 1]; b++)
                    rest -= (u8)histograms[b * n_values + c];
                histograms[at * n_values + c] = (i8)rest;
            }
        }
}

INLINE i8 size_of(i8 value) { return value < 0 ? (i8)(0 - (u8)value) : value; }

EXPORT i8 exceeds(const i8 *histograms, i8 n, i8 n_bins, i8 n_values, const u1 *kept, i8 n_kept,
                  i8 kept_bins, const u1 *empty, i8 n_empty, i8 empty_bins, const i8 *offsets,
                  i8 n_offsets, const i8 *limit, i8 n_limit, i8 n_used)
{
    (void)n_kept, (void)kept_bins, (void)n_empty, (void)empty_bins, (void)n_offsets, (void)n_limit;
    for (i8 i = 0; i < n; i++, histograms += n_bins * n_values, kept += n_bins, empty += n_bins)
        for (i8 k = 0; k < n_used; k++) {
            i8 most = limit[i * n_used + k];
            for (i8 b = offsets[k]; b < offsets[k + 1]; b++)
                for (i8 c = 0; c < n_values; c += 2) {
                    i8 size = size_of(histograms[b * n_values + c]);
                    if ((kept[b] && size > most) || (empty[b] && size > 0)) return 1;
                }
        }
    return 0;
}

EXPORT void greatest(const i8 *histogram, i8 n_bins, i8 n_values, const u1 *kept, i8 n_kept,
                     const i8 *offsets, i8 n_offsets, i8 *most, i8 n_used, i8 two, u1 *filled,
                     i8 n_filled)
{
    (void)n_bins, (void)n_kept, (void)n_offsets, (void)two, (void)n_filled;
    for (i8 k = 0; k < n_used; k++)
        for (i8 b = offsets[k]; b < offsets[k + 1]; b++) {
            if (!kept[b]) continue;
            for (i8 c = 0; c < n_values; c++) {
                i8 size = size_of(histogram[b * n_values + c]), *top = most + 2 * k + c % 2;
                *top = greatest_of(*top, size);
                if (size) filled[b] = 1;
            }
        }
}

/* ---- vertical parties ---- */

EXPORT i8 merge_divisions(const i8 *offsets, i8 n_offsets, const i8 *starts, i8 n_starts,
                          const u1 *missing, i8 n_missing, const u1 *mirrored, i8 n_mirrored,
                          const u1 *chained, i8 n_chained, const i8 *counts, i8 n_nodes,
                          i8 n_bins, const i8 *totals, i8 n_totals, const u1 *parent, i8 n_parent,
                          const i8 *fewest, i8 n_fewest, u1 *out, i8 n_out)
{
    i8 *since = malloc(16 * (size_t)(n_nodes + 1)), *after = since + n_nodes;
    if (!since) return NO_MEMORY;
    (void)n_offsets, (void)n_missing, (void)n_mirrored, (void)n_chained, (void)n_totals;
    (void)n_parent, (void)n_fewest, (void)n_out;
    for (i8 k = 0; k < n_starts; k++) {
        i8 low = offsets[k], n = offsets[k + 1] - low, at = starts[k], least = fewest[k];
        /* Missing values are a group of their own, or belong to the last one. */
        int apart = missing[k] && parent[at + n - 1];
        for (i8 i = 0; i < n_nodes; i++) {
            after[i] = 0;
            for (i8 b = 0; b < n; b++) after[i] += counts[i * n_bins + low + b];
            i8 absent = totals[i] - after[i];
            apart = apart && (absent == 0 || absent >= least);
            apart = apart && (after[i] == 0 || after[i] >= least);
        }
        if (!apart) {
            memcpy(after, totals, 8 * (size_t)n_nodes);
        } else if (n > 0) {
            out[at + n - 1] = 1;
            if (mirrored[k]) out[at + 2 * n - 1] = 1;
        }
        memset(since, 0, 8 * (size_t)n_nodes);
        for (i8 c = 0; c < n - 1; c++) {
            int fits = parent[at + c];
            for (i8 i = 0; i < n_nodes; i++) {
                since[i] += counts[i * n_bins + low + c];
                after[i] -= counts[i * n_bins + low + c];
                fits = fits && (since[i] == 0 || since[i] >= least);
                fits = fits && (after[i] == 0 || after[i] >= least);
            }
            if (!fits) continue;
            memset(since, 0, 8 * (size_t)n_nodes);
            out[at + c] = 1;
            if (apart && !chained[k]) out[at + n + (n - 2 - c)] = 1;
        }
    }
    free(since);
    return 0;
}
