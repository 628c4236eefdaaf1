/* Kernels that fit and walk whole trees. The Python functions of the same names say what each does
   and return the same bytes. */
#include "../../crypto/native/common.h"

SORT_POSITIONS(f8)
SORT_POSITIONS(i8)

/* ---- walks ---- */

enum { ROWS_PER_BLOCK = 2048 };

#define WALK(T)                                                                                    \
    EXPORT void walk_forest_##T(                                                                   \
        const f4 *X, i8 n, i8 n_features, const i8 *roots, i8 n_trees, const i8 *left, i8 n_nodes, \
        const i8 *right, i8 n_right, const i8 *feature, i8 n_feature, const f4 *threshold,         \
        i8 n_threshold, const u1 *default_left, i8 n_default_left, const i8 *ordinal,              \
        i8 n_ordinal, const i8 *begin, i8 n_begin, const i8 *end, i8 n_end, const i4 *codes,       \
        i8 n_codes, T *out, i8 n_out, i8 width)                                                    \
    {                                                                                              \
        (void)n_nodes, (void)n_right, (void)n_feature, (void)n_threshold, (void)n_default_left;    \
        (void)n_ordinal, (void)n_begin, (void)n_end, (void)n_codes, (void)n_out;                   \
        for (i8 first = 0; first < n; first += ROWS_PER_BLOCK) {                                   \
            i8 last = least_of(first + ROWS_PER_BLOCK, n);                                         \
            for (i8 tree = 0; tree < n_trees; tree++)                                              \
                for (i8 row = first; row < last; row++) {                                          \
                    i8 node = roots[tree];                                                         \
                    while (left[node] >= 0) {                                                      \
                        f4 value = X[row * n_features + feature[node]];                            \
                        int goes_left;                                                             \
                        if (value != value) {                                                      \
                            goes_left = default_left[node];                                        \
                        } else if (begin[node] >= 0) {                                             \
                            goes_left = 1;                                                         \
                            for (i8 p = begin[node]; p < end[node] && goes_left; p++)              \
                                goes_left = (f8)codes[p] != (f8)value;                             \
                        } else {                                                                   \
                            goes_left = value < threshold[node];                                   \
                        }                                                                          \
                        node = goes_left ? left[node] : right[node];                               \
                    }                                                                              \
                    out[row * width + tree] = (T)ordinal[node];                                    \
                }                                                                                  \
        }                                                                                          \
    }                                                                                              \
    EXPORT void gather_leaves_##T(const T *ordinals, i8 n_ordinals, i8 n_trees, const i8 *rows,    \
                                  i8 n, const f4 *values, i8 n_values, const i8 *offsets,          \
                                  i8 n_offsets, f4 *out, i8 n_out, i8 width)                       \
    {                                                                                              \
        (void)n_ordinals, (void)n_values, (void)n_offsets, (void)n_out;                            \
        for (i8 i = 0; i < n; i++)                                                                 \
            for (i8 tree = 0; tree < n_trees; tree++)                                              \
                out[i * width + tree] = values[offsets[tree] + ordinals[rows[i] * n_trees + tree]]; \
    }                                                                                              \
    EXPORT void sum_leaves_##T(const T *ordinals, i8 n, i8 n_trees, const f8 *values, i8 n_values, \
                               const i8 *offsets, i8 n_offsets, const i8 *groups, i8 n_groups,     \
                               f8 *out, i8 n_out, i8 width)                                        \
    {                                                                                              \
        (void)n_values, (void)n_offsets, (void)n_groups, (void)n_out;                              \
        for (i8 row = 0; row < n; row++)                                                           \
            for (i8 tree = 0; tree < n_trees; tree++)                                              \
                out[row * width + groups[tree]] +=                                                 \
                    values[offsets[tree] + ordinals[row * n_trees + tree]];                        \
    }                                                                                              \
    EXPORT void sum_errors_##T(const T *ordinals, i8 n, i8 n_trees, const f8 *errors, i8 n_errors, \
                               i8 width, const i8 *offsets, i8 n_offsets, const i8 *groups,        \
                               i8 n_groups, f8 *out, i8 n_out)                                     \
    {                                                                                              \
        (void)n_errors, (void)n_offsets, (void)n_groups, (void)n_out;                              \
        for (i8 row = 0; row < n; row++)                                                           \
            for (i8 tree = 0; tree < n_trees; tree++)                                              \
                out[offsets[tree] + ordinals[row * n_trees + tree]] +=                             \
                    errors[row * width + groups[tree]];                                            \
    }
WALK(u1)
WALK(u2)

EXPORT void walk_directions(const u1 *directions, i8 n, i8 n_bits, const i4 *roots, i8 n_trees,
                            const i4 *left, i8 n_nodes, const i4 *bit, i8 n_bit, const f4 *value,
                            i8 n_value, i8 width, f4 *out, i8 n_out, i8 n_outputs)
{
    (void)n_nodes, (void)n_bit, (void)n_value, (void)n_out;
    for (i8 row = 0; row < n; row++, directions += n_bits, out += n_outputs)
        for (i8 tree = 0; tree < n_trees; tree++) {
            i8 node = roots[tree];
            while (left[node] >= 0) node = left[node] + !directions[bit[node]];
            for (i8 k = 0; k < n_outputs; k++) out[k] += value[node * width + k];
        }
}

EXPORT void reach(const u1 *answers, i8 n, i8 n_places, const i4 *roots, i8 n_trees,
                  const i4 *left, i8 n_nodes, const i4 *place, i8 n_place, f4 *out, i8 n_out,
                  i8 width)
{
    (void)n_nodes, (void)n_place, (void)n_out;
    for (i8 row = 0; row < n; row++, answers += n_places)
        for (i8 tree = 0; tree < n_trees; tree++) {
            i8 node = roots[tree];
            while (left[node] >= 0) node = left[node] + !answers[place[node]];
            out[row * width + tree] = (f4)(-1 - left[node]);
        }
}

EXPORT i8 attribute(const u1 *directions, i8 n, i8 n_directions, const i8 *step_ends, i8 n_steps,
                    const i8 *column, i8 n_column, const u1 *way, i8 n_way, const i8 *slot,
                    i8 n_slot, const i8 *slot_ends, i8 n_slots, const i8 *player, i8 n_player,
                    const f8 *zero, i8 n_zero, const f8 *value, i8 n_leaves, i8 n_outputs,
                    f8 *out, i8 n_out, i8 out_outputs, i8 n_players)
{
    i8 most = 0, bias = n_players - 1;
    (void)n_steps, (void)n_column, (void)n_way, (void)n_slot, (void)n_slots, (void)n_player;
    (void)n_zero, (void)n_out;
    for (i8 leaf = 0; leaf < n_leaves; leaf++)
        most = greatest_of(most, slot_ends[leaf + 1] - slot_ends[leaf]);
    f8 *poly = malloc((size_t)(2 * most + 2) * 8 + (size_t)most + 1), *rest = poly + most + 1;
    if (!poly) return NO_MEMORY;
    u1 *one = (u1 *)(rest + most + 1);
    for (i8 row = 0; row < n; row++, directions += n_directions, out += out_outputs * n_players)
        for (i8 leaf = 0; leaf < n_leaves; leaf++) {
            i8 first = slot_ends[leaf], d = slot_ends[leaf + 1] - first, degree = 0;
            const f8 *own = value + leaf * n_outputs;
            memset(one, 1, (size_t)d);
            for (i8 k = step_ends[leaf]; k < step_ends[leaf + 1]; k++)
                if (directions[column[k]] != way[k]) one[slot[k]] = 0;
            f8 everyone = 1.0;
            poly[0] = 1.0;
            for (i8 j = 0; j < d; j++) {
                f8 z = zero[first + j];
                everyone *= z;
                if (!one[j]) continue;
                degree++;
                poly[degree] = poly[degree - 1];
                for (i8 k = degree - 1; k > 0; k--) poly[k] = poly[k - 1] + z * poly[k];
                poly[0] *= z;
            }
            for (i8 c = 0; c < out_outputs; c++) out[c * n_players + bias] += own[c] * everyone;
            for (i8 j = 0; j < d; j++) {
                f8 z = zero[first + j], others = 1.0;
                for (i8 i = 0; i < d; i++)
                    if (!one[i] && i != j) others *= zero[first + i];
                if (others == 0.0) continue;
                i8 top = degree;
                if (one[j]) {
                    top = degree - 1;
                    rest[top] = poly[degree];
                    for (i8 k = top - 1; k >= 0; k--) rest[k] = poly[k + 1] - z * rest[k + 1];
                } else {
                    memcpy(rest, poly, 8 * (size_t)(top + 1));
                }
                f8 weight = 1.0 / (f8)d, total = 0.0;
                for (i8 k = 0; k <= top; k++) {
                    total += rest[k] * weight;
                    if (k < d - 1) weight *= ((f8)k + 1.0) / ((f8)d - 1.0 - (f8)k);
                }
                f8 part = total * others * ((one[j] ? 1.0 : 0.0) - z);
                for (i8 c = 0; c < out_outputs; c++)
                    out[c * n_players + player[first + j]] += own[c] * part;
            }
        }
    free(poly);
    return 0;
}

/* ---- the best cut of a node's rows ---- */

/* `ranked.RankedColumns`, in its order. */
#define TABLE                                                                                      \
    const i4 *codes, i8 n_features, i8 n_samples, const f4 *values, i8 n_values,                   \
        const i8 *value_starts, i8 n_value_starts, const u1 *categorical, i8 n_categorical,        \
        i8 by_target, const f8 *sums, i8 n_sums_rows, i8 n_sums, const f8 *weight, i8 n_weight
#define OF_TABLE                                                                                   \
    {codes, values, value_starts, categorical, sums, weight, n_samples, n_sums, by_target};        \
    (void)n_features, (void)n_values, (void)n_value_starts, (void)n_categorical;                   \
    (void)n_sums_rows, (void)n_weight

typedef struct {
    const i4 *codes;
    const f4 *values;
    const i8 *starts;
    const u1 *categorical;
    const f8 *sums, *weight;
    i8 n_samples, n_sums, by_target;
} ranked;

typedef struct {
    const i8 *rows;
    i8 n_rows;
    const f8 *total;
    f8 weight;
} node_rows;

typedef struct {
    i8 *code;
    f8 *sums, *stat;
} rank_groups;

static void sort_keys(i8 *keys, i8 n, i8 *spare)
{
    if (n <= 64) {
        for (i8 i = 1; i < n; i++) {
            i8 key = keys[i], j = i;
            for (; j > 0 && keys[j - 1] > key; j--) keys[j] = keys[j - 1];
            keys[j] = key;
        }
        return;
    }
    i8 *from = keys, *to = spare;
    for (int shift = 0; shift < 64; shift += 8) { /* never negative */
        i8 at[256] = {0}, total = 0;
        int alike = 0;
        for (i8 i = 0; i < n; i++) at[((u8)from[i] >> shift) & 0xFF]++;
        for (int d = 0; d < 256; d++) alike |= at[d] == n;
        if (alike) continue;
        for (int d = 0; d < 256; d++) {
            i8 size = at[d];
            at[d] = total;
            total += size;
        }
        for (i8 i = 0; i < n; i++) to[at[((u8)from[i] >> shift) & 0xFF]++] = from[i];
        i8 *other = from;
        from = to;
        to = other;
    }
    if (from != keys) memcpy(keys, from, 8 * (size_t)n);
}

INLINE void add_row(const ranked *t, i8 row, i8 group, const rank_groups *g)
{
    for (i8 s = 0; s < t->n_sums; s++) g->sums[group * t->n_sums + s] += t->sums[row * t->n_sums + s];
    g->stat[2 * group] += t->weight[row];
    g->stat[2 * group + 1] += 1.0;
}

static i8 gather_groups(const ranked *t, i8 feature, i8 n_values, const node_rows *node,
                        const rank_groups *g)
{
    const i4 *codes = t->codes + feature * t->n_samples;
    i8 m = node->n_rows, n_sums = t->n_sums, n_groups = 0;
    if (n_values <= 4 * m + 16) {
        memset(g->sums, 0, 8 * (size_t)(n_values * n_sums));
        memset(g->stat, 0, 16 * (size_t)n_values);
        for (i8 i = 0; i < m; i++) {
            i8 row = node->rows[i];
            if (codes[row] >= 0) add_row(t, row, codes[row], g);
        }
        for (i8 code = 0; code < n_values; code++) {
            if (!(g->stat[2 * code + 1] > 0.0)) continue;
            if (code != n_groups) {
                memcpy(g->sums + n_groups * n_sums, g->sums + code * n_sums, 8 * (size_t)n_sums);
                memcpy(g->stat + 2 * n_groups, g->stat + 2 * code, 16);
            }
            g->code[n_groups++] = code;
        }
        return n_groups;
    }
    i8 *packed = malloc(16 * (size_t)(m + 1)), n_present = 0;
    if (!packed) return NO_MEMORY;
    for (i8 i = 0; i < m; i++) {
        i8 row = node->rows[i];
        if (codes[row] >= 0) packed[n_present++] = (i8)codes[row] << 32 | row;
    }
    sort_keys(packed, n_present, packed + m);
    for (i8 i = 0; i < n_present; i++) {
        i8 code = packed[i] >> 32, row = packed[i] & 0xFFFFFFFF;
        if (n_groups == 0 || g->code[n_groups - 1] != code) {
            g->code[n_groups] = code;
            memset(g->sums + n_groups * n_sums, 0, 8 * (size_t)n_sums);
            memset(g->stat + 2 * n_groups, 0, 16);
            n_groups++;
        }
        add_row(t, row, n_groups - 1, g);
    }
    free(packed);
    return n_groups;
}

typedef struct {
    f8 score;
    f4 threshold;
    i8 rank;
    int missing_left;
} cut;

static i8 best_of_feature(const ranked *t, i8 feature, const node_rows *node, i8 min_leaf,
                          const rank_groups *g, u1 *goes_left, cut *found)
{
    const f4 *values = t->values + t->starts[feature];
    i8 n_values = t->starts[feature + 1] - t->starts[feature];
    i8 m = node->n_rows, n_sums = t->n_sums, best_cut = -1;
    f8 best = -INFINITY;
    int categorical = t->categorical[feature], best_missing_left = 0;
    *found = (cut){-INFINITY, 0.0f, -1, 0};
    i8 n_groups = gather_groups(t, feature, n_values, node, g);
    if (n_groups <= 0) return n_groups;
    i8 *order = malloc(8 * (size_t)(3 * n_groups + 2 * n_sums));
    if (!order) return NO_MEMORY;
    f8 *means = (f8 *)(order + 2 * n_groups), *missing_sums = means + n_groups;
    f8 *left = missing_sums + n_sums;
    for (i8 k = 0; k < n_groups; k++) order[k] = k;
    if (categorical && t->by_target) {
        i8 column = n_sums == 2;
        if (n_sums > 2)
            for (i8 s = 1; s < n_sums; s++)
                if (node->total[s] > node->total[column]) column = s;
        for (i8 k = 0; k < n_groups; k++) {
            f8 w = g->stat[2 * k];
            means[k] = g->sums[k * n_sums + column] / (1e-300 > w ? 1e-300 : w);
        }
        sort_positions_f8(means, n_groups, order, order + n_groups);
    }
    memcpy(missing_sums, node->total, 8 * (size_t)n_sums);
    f8 missing_weight = node->weight, n_missing = (f8)m;
    for (i8 k = 0; k < n_groups; k++) {
        for (i8 s = 0; s < n_sums; s++) missing_sums[s] -= g->sums[k * n_sums + s];
        missing_weight -= g->stat[2 * k];
        n_missing -= g->stat[2 * k + 1];
    }
    if (n_missing == 0.0) {
        memset(missing_sums, 0, 8 * (size_t)n_sums);
        missing_weight = 0.0;
    }
    memset(left, 0, 8 * (size_t)n_sums);
    f8 left_weight = 0.0, n_left = 0.0;
    for (i8 j = 0; j < n_groups; j++) {
        i8 k = order[j];
        for (i8 s = 0; s < n_sums; s++) left[s] += g->sums[k * n_sums + s];
        left_weight += g->stat[2 * k];
        n_left += g->stat[2 * k + 1];
        for (int missing_left = 0; missing_left < 2; missing_left++) {
            /* The last cut sends every present value left: only missing ones can go right. */
            if (missing_left && (n_missing == 0.0 || j == n_groups - 1)) break;
            f8 count = n_left + missing_left * n_missing;
            f8 w_left = left_weight + missing_left * missing_weight, w_right = node->weight - w_left;
            if (count < (f8)min_leaf || (f8)m - count < (f8)min_leaf || w_left <= 0.0 || w_right <= 0.0)
                continue;
            f8 square_left = 0.0, square_right = 0.0;
            for (i8 s = 0; s < n_sums; s++) {
                f8 a = left[s] + missing_left * missing_sums[s], b = node->total[s] - a;
                square_left += a * a;
                square_right += b * b;
            }
            f8 score = square_left / w_left + square_right / w_right, size = fabs(best);
            if (score > best + 1e-10 * (size > 1e-290 ? size : 1e-290) || best_cut < 0)
                best = score, best_cut = j, best_missing_left = missing_left;
        }
    }
    if (best_cut >= 0) {
        *found = (cut){best, 0.0f, n_values, best_missing_left};
        if (categorical) {
            f8 chosen_left = 0.0, present = node->weight - missing_weight;
            for (i8 j = 0; j <= best_cut; j++) chosen_left += g->stat[2 * order[j]];
            /* A category not met in this node follows the heavier side. */
            memset(goes_left, chosen_left > present - chosen_left, (size_t)n_values);
            for (i8 j = 0; j < n_groups; j++) goes_left[g->code[order[j]]] = j <= best_cut;
        } else if (best_cut == n_groups - 1) {
            found->threshold = 3.40282346638528859812e38f;
            found->rank = n_values - 1;
        } else {
            i8 low = g->code[best_cut], high = g->code[best_cut + 1];
            f4 threshold = (f4)(0.5 * ((f8)values[low] + (f8)values[high]));
            if (threshold <= values[low]) threshold = values[high];
            while (low + 1 < high && values[low + 1] < threshold) low++;
            found->threshold = threshold;
            found->rank = low;
        }
    }
    free(order);
    return 0;
}

EXPORT i8 cut_feature(TABLE, i8 feature, const i8 *rows, i8 n_rows, const f8 *total, i8 n_total,
                      f8 node_weight, i8 min_leaf, i8 *group_code, i8 n_code, f8 *group_sums,
                      i8 n_group_sums, i8 group_width, f8 *group_stat, i8 n_stat, i8 two,
                      u1 *goes_left, i8 n_goes_left, f8 *out, i8 four)
{
    ranked t = OF_TABLE;
    node_rows node = {rows, n_rows, total, node_weight};
    rank_groups g = {group_code, group_sums, group_stat};
    cut found;
    (void)n_total, (void)n_code, (void)n_group_sums, (void)group_width, (void)n_stat, (void)two;
    (void)n_goes_left, (void)four;
    i8 status = best_of_feature(&t, feature, &node, min_leaf, &g, goes_left, &found);
    out[0] = found.score, out[1] = found.threshold, out[2] = (f8)found.rank;
    out[3] = found.missing_left;
    return status;
}

static int pure(const ranked *t, const node_rows *node)
{
    if (t->n_sums > 1) {
        for (i8 s = 0; s < t->n_sums; s++)
            if (node->total[s] > 0.0) return node->total[s] >= node->weight * (1.0 - 1e-12);
        return 1;
    }
    f8 first = 0.0;
    for (i8 i = 0; i < node->n_rows; i++) {
        f8 w = t->weight[node->rows[i]], mean = t->sums[node->rows[i]] / (1e-300 > w ? 1e-300 : w);
        if (i == 0) first = mean;
        else if (mean != first) return 0;
    }
    return 1;
}

EXPORT i8 is_pure(TABLE, const i8 *rows, i8 n_rows, const f8 *total, i8 n_total, f8 node_weight)
{
    ranked t = OF_TABLE;
    node_rows node = {rows, n_rows, total, node_weight};
    (void)by_target, (void)n_total;
    return pure(&t, &node);
}

static i8 divide(const i4 *codes, const i8 *rows, i8 n, i8 *scratch, int categorical,
                 const u1 *goes_left, i8 rank, int missing_left, i8 *out)
{
    i8 n_left = 0, n_right = 0;
    for (i8 i = 0; i < n; i++) {
        i8 row = rows[i], code = codes[row];
        int left = code < 0 ? missing_left : categorical ? goes_left[code] : code <= rank;
        if (left) out[n_left++] = row;
        else scratch[n_right++] = row;
    }
    memcpy(out + n_left, scratch, 8 * (size_t)n_right);
    return n_left;
}

EXPORT i8 divide_rows(const i4 *codes, i8 n_codes, const i8 *rows, i8 n, i8 *scratch, i8 n_scratch,
                      i8 categorical, const u1 *goes_left, i8 n_goes_left, i8 rank,
                      i8 missing_left, i8 *out, i8 n_out)
{
    (void)n_codes, (void)n_scratch, (void)n_goes_left, (void)n_out;
    return divide(codes, rows, n, scratch, categorical != 0, goes_left, rank, missing_left != 0, out);
}

/* ---- a population of structures ---- */

typedef struct {
    const i8 *population;
    i8 n_genes, depth, min_leaf, same;
    i8 *rows, *scored, *who, *where, *scratch;
    i8 n_fit, n_scored, n_structures;
    rank_groups groups;
    f8 *tallies;
    i8 width;
} search;

static void score_leaf(const ranked *t, const node_rows *node, const i8 *scored, i8 n, f8 *result)
{
    if (t->n_sums > 1) {
        i8 label = 0;
        for (i8 s = 1; s < t->n_sums; s++)
            if (node->total[s] > node->total[label]) label = s;
        for (i8 i = 0; i < n; i++) {
            result[label] += t->sums[scored[i] * t->n_sums + label];
            result[t->n_sums + label] += t->weight[scored[i]];
        }
        return;
    }
    f8 mean = node->weight > 0.0 ? node->total[0] / node->weight : 0.0, error = 0.0;
    for (i8 i = 0; i < n; i++) {
        f8 w = t->weight[scored[i]];
        if (!(w > 0.0)) continue;
        f8 residual = t->sums[scored[i]] / w - mean;
        error += w * residual * residual;
    }
    result[0] += error;
}

static void add_tallies(const search *s, i8 structure, const f8 *part)
{
    for (i8 c = 0; c < s->width; c++) s->tallies[structure * s->width + c] += part[c];
}

static i8 walk(const ranked *t, const search *s, i8 level, i8 low, i8 high, i8 score_low,
               i8 score_high, i8 n_pairs)
{
    i8 *who = s->who + level * s->n_structures, *where = s->where + level * s->n_structures;
    const i8 *rows = s->rows + level * s->n_fit + low;
    const i8 *scored = s->same ? rows : s->scored + level * s->n_scored + score_low;
    i8 n_rows = high - low, n_scored = s->same ? n_rows : score_high - score_low, status = 0;
    f8 *total = calloc((size_t)(t->n_sums + s->width), 8), weight = 0.0;
    i8 *genes = malloc(24 * (size_t)(n_pairs + 1));
    u1 *goes_left = NULL;
    i8 room = 0;
    if (!total || !genes) {
        status = NO_MEMORY;
        goto end;
    }
    f8 *part = total + t->n_sums;
    for (i8 i = 0; i < n_rows; i++) {
        weight += t->weight[rows[i]];
        for (i8 c = 0; c < t->n_sums; c++) total[c] += t->sums[rows[i] * t->n_sums + c];
    }
    node_rows node = {rows, n_rows, total, weight};
    score_leaf(t, &node, scored, n_scored, part);
    if (level == s->depth || n_rows < 2 * s->min_leaf || pure(t, &node)) {
        for (i8 k = 0; k < n_pairs; k++) add_tallies(s, who[k], part);
        goto end;
    }
    i8 *order = genes + n_pairs;
    for (i8 k = 0; k < n_pairs; k++) genes[k] = s->population[who[k] * s->n_genes + where[k]];
    sort_positions_i8(genes, n_pairs, order, order + n_pairs);
    i8 right_step = (i8)1 << (s->depth - level - 1);
    for (i8 first = 0, last = 0; first < n_pairs; first = last) {
        i8 feature = genes[order[first]];
        while (last < n_pairs && genes[order[last]] == feature) last++;
        cut found = {-INFINITY, 0.0f, -1, 0};
        if (feature >= 0) {
            i8 widest = t->starts[feature + 1] - t->starts[feature];
            if (t->categorical[feature] && widest > room) {
                free(goes_left);
                goes_left = malloc((size_t)(room = widest));
                if (!goes_left) status = NO_MEMORY;
            }
            if (!status)
                status = best_of_feature(t, feature, &node, s->min_leaf, &s->groups, goes_left,
                                         &found);
            if (status) goto end;
        }
        if (found.rank < 0) {
            for (i8 k = first; k < last; k++) add_tallies(s, who[order[k]], part);
            continue;
        }
        const i4 *codes = t->codes + feature * t->n_samples;
        int categorical = t->categorical[feature];
        i8 n_left = divide(codes, rows, n_rows, s->scratch, categorical, goes_left, found.rank,
                           found.missing_left, s->rows + (level + 1) * s->n_fit + low);
        i8 score_left = 0;
        if (!s->same)
            score_left = divide(codes, scored, n_scored, s->scratch, categorical, goes_left,
                                found.rank, found.missing_left,
                                s->scored + (level + 1) * s->n_scored + score_low);
        for (int side = 0; side < 2; side++) {
            i8 step = side ? right_step : 1;
            for (i8 k = first; k < last; k++) {
                who[s->n_structures + k - first] = who[order[k]];
                where[s->n_structures + k - first] = where[order[k]] + step;
            }
            status = side ? walk(t, s, level + 1, low + n_left, high, score_low + score_left,
                                 score_high, last - first)
                          : walk(t, s, level + 1, low, low + n_left, score_low,
                                 score_low + score_left, last - first);
            if (status) goto end;
        }
    }
end:
    free(total);
    free(genes);
    free(goes_left);
    return status;
}

EXPORT i8 walk_structures(TABLE, const i8 *population, i8 n_structures, i8 n_genes, i8 depth,
                          i8 min_leaf, i8 same, i8 *rows, i8 n_rows, i8 n_fit, i8 *scored,
                          i8 n_levels, i8 n_scored, i8 *who, i8 n_who, i8 who_width, i8 *where,
                          i8 n_where, i8 where_width, i8 *group_code, i8 n_code, f8 *group_sums,
                          i8 n_group_sums, i8 group_width, f8 *group_stat, i8 n_stat, i8 two,
                          i8 *scratch, i8 n_scratch, f8 *tallies, i8 n_tallies, i8 width)
{
    ranked t = OF_TABLE;
    search s = {population, n_genes,  depth,    min_leaf,     same,
                rows,       scored,   who,      where,        scratch,
                n_fit,      n_scored, who_width, {group_code, group_sums, group_stat},
                tallies,    width};
    (void)n_structures, (void)n_rows, (void)n_levels, (void)n_who, (void)n_where, (void)where_width;
    (void)n_code, (void)n_group_sums, (void)group_width, (void)n_stat, (void)two, (void)n_scratch;
    (void)n_tallies;
    return walk(&t, &s, 0, 0, n_fit, 0, n_scored, n_structures);
}
