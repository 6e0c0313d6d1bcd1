// What a GRU does between two matrix products, forward and backward, in one pass over each sentence's state.
//
// One call is one time of a packed batch: `batch` rows, the sentences that reach it, whose tokens begin at row `first`.
// The products U h and d U are the caller's, in float32 or bfloat16; all else is float32. A row of 3 * hidden values has
// the blocks r, z, c. Rows are tokens, time-major, unless said otherwise.

#include <cstdint>

#include "numbers.h"

namespace {

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

inline float hyperbolic_tangent(float x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }

// What all times of one direction share; the same fields, in the same order, stand in cells.py.
struct Direction {
    int64_t hidden;
    const int64_t* tokens;   // word of each token
    const float* projected;  // W x + b of each distinct word [distinct, 3 * hidden]
    const float* bias;       // b' of the candidate [hidden]
    float* gates;            // r, z and c after their non-linearity [tokens, 3 * hidden]; null where nothing is kept
    float* products;         // U_c h + b' [tokens, hidden]
    float* states;           // state before each token [tokens, hidden]; of each sentence where nothing is kept
    void* low_states;        // the same as the products read it; null in float32
    const void* step;        // U h of this time's sentences [batch, 3 * hidden]
    float* last;             // state after the last token of each sentence [batch, hidden]
    float* d_state;          // gradient of each sentence's state [batch, hidden]
    const void* d_step;      // what the product of the time after adds to it [batch, hidden]
    void* d_products;        // gradient of U h [tokens, 3 * hidden]; may be `gates` in float32
    float* d_projected;      // gradient of `projected`, added to [distinct, 3 * hidden]
    float* d_bias;           // gradient of `bias`, added to [hidden]
};

template <class Low, bool is_first, bool is_kept>
void forward_row(int64_t hidden, const float* __restrict inputs, const typename Low::Type* __restrict step,
                 const float* __restrict bias, const float* before, float* __restrict gates,
                 float* __restrict product, float* after, typename Low::Type* __restrict low_after) {
#pragma GCC ivdep
    for (int64_t i = 0; i < hidden; i++) {
        const float h = is_first ? 0.0f : before[i];
        const float of_reset = is_first ? 0.0f : Low::read(step[i]);
        const float of_update = is_first ? 0.0f : Low::read(step[hidden + i]);
        const float of_candidate = (is_first ? 0.0f : Low::read(step[2 * hidden + i])) + bias[i];
        const float r = sigmoid(inputs[i] + of_reset);
        const float z = sigmoid(inputs[hidden + i] + of_update);
        const float c = hyperbolic_tangent(inputs[2 * hidden + i] + r * of_candidate);
        const float state = c + z * (h - c);
        if (is_kept) {
            gates[i] = r;
            gates[hidden + i] = z;
            gates[2 * hidden + i] = c;
            product[i] = of_candidate;
        }
        after[i] = state;
        if (low_after) low_after[i] = Low::written(state);
    }
}

template <class Low, bool is_first, bool is_kept>
void forward(const Direction& d, int64_t first, int64_t batch, int64_t following) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden, now = is_kept ? first : 0, next = is_kept ? first + batch : 0;
    const Type* step = static_cast<const Type*>(d.step);
    Type* low_states = static_cast<Type*>(d.low_states);
    for (int64_t row = 0; row < batch; row++) {
        const bool goes_on = row < following;
        const bool is_state = goes_on || !is_kept;
        forward_row<Low, is_first, is_kept>(
            hidden, d.projected + d.tokens[first + row] * 3 * hidden, step + row * 3 * hidden, d.bias,
            d.states + (now + row) * hidden, d.gates + (is_kept ? (now + row) * 3 * hidden : 0),
            d.products + (is_kept ? (now + row) * hidden : 0),
            is_state ? d.states + (next + row) * hidden : d.last + row * hidden,
            low_states && goes_on ? low_states + (next + row) * hidden : nullptr);
    }
}

template <class Low, bool is_first>
void backward_row(int64_t hidden, float* __restrict d_state, const typename Low::Type* __restrict d_step,
                  const float* gates, const float* __restrict product, const float* __restrict before,
                  typename Low::Type* d_products, float* __restrict d_projected, float* __restrict d_bias) {
#pragma GCC ivdep
    for (int64_t i = 0; i < hidden; i++) {
        const float r = gates[i], z = gates[hidden + i], c = gates[2 * hidden + i];
        const float h = is_first ? 0.0f : before[i];
        const float d = d_state[i] + (d_step ? Low::read(d_step[i]) : 0.0f);
        const float d_c = d * (1.0f - z) * (1.0f - c * c);
        const float d_z = d * (h - c) * z * (1.0f - z);
        const float d_r = d_c * product[i] * r * (1.0f - r);
        d_state[i] = d * z;
        d_projected[i] += d_r;
        d_projected[hidden + i] += d_z;
        d_projected[2 * hidden + i] += d_c;
        d_bias[i] += d_c * r;
        d_products[i] = Low::written(d_r);
        d_products[hidden + i] = Low::written(d_z);
        d_products[2 * hidden + i] = Low::written(d_c * r);
    }
}

template <class Low, bool is_first>
void backward(const Direction& d, int64_t first, int64_t batch, int64_t following) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden;
    const Type* d_step = static_cast<const Type*>(d.d_step);
    Type* d_products = static_cast<Type*>(d.d_products);
    for (int64_t row = 0; row < batch; row++) {
        const int64_t token = first + row;
        backward_row<Low, is_first>(hidden, d.d_state + row * hidden, row < following ? d_step + row * hidden : nullptr,
                                    d.gates + token * 3 * hidden, d.products + token * hidden,
                                    d.states + token * hidden, d_products + token * 3 * hidden,
                                    d.d_projected + d.tokens[token] * 3 * hidden, d.d_bias);
    }
}

template <class Low>
void forward_time(const Direction& d, int64_t first, int64_t batch, int64_t following) {
    if (d.gates) {
        first ? forward<Low, false, true>(d, first, batch, following)
              : forward<Low, true, true>(d, first, batch, following);
    } else {
        first ? forward<Low, false, false>(d, first, batch, following)
              : forward<Low, true, false>(d, first, batch, following);
    }
}

template <class Low>
void backward_time(const Direction& d, int64_t first, int64_t batch, int64_t following) {
    first ? backward<Low, false>(d, first, batch, following) : backward<Low, true>(d, first, batch, following);
}

}  // namespace

// `following` sentences, the first of the batch's rows, reach the next time as well.
extern "C" {

void gru_forward_float32(const Direction* d, int64_t first, int64_t batch, int64_t following) {
    forward_time<Float>(*d, first, batch, following);
}

void gru_forward_bfloat16(const Direction* d, int64_t first, int64_t batch, int64_t following) {
    forward_time<BFloat16>(*d, first, batch, following);
}

void gru_backward_float32(const Direction* d, int64_t first, int64_t batch, int64_t following) {
    backward_time<Float>(*d, first, batch, following);
}

void gru_backward_bfloat16(const Direction* d, int64_t first, int64_t batch, int64_t following) {
    backward_time<BFloat16>(*d, first, batch, following);
}
}
