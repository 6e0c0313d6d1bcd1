// The operations of an LSTM between two matrix products, forward and backward, in one pass over each sentence's state.
//
// One call is one time step of a packed batch: `batch` rows, the sentences that reach it, whose tokens start at row
// `first`; the same sentences' tokens at the step before start at row `before`, which is negative at the first step.
// The caller computes the products U h and d U, in float32 or bfloat16; everything else is float32. A row of 4 * hidden
// values has the blocks i, f, g, o. Rows are tokens, time-major, unless noted otherwise.

#include <cstdint>

#include "numbers.h"

namespace {

// The arguments shared by all time steps of one direction; `_Direction` in packed_lstm.py has the same fields.
struct Direction {
    int64_t hidden;
    const int64_t* tokens;    // word of each token
    const float* projected;   // W x + b of each distinct word [distinct, 4 * hidden]
    const void* recurrent;    // U h of this time step [batch, 4 * hidden]
    float* gates;             // i, f, g and o after activation [tokens, 4 * hidden]
    float* cells;             // cell after each token [tokens, hidden]
    float* states;            // state after each token [tokens, hidden]
    void* before;             // state before each token, in the type of the products [tokens, hidden]
    const float* d_states;    // gradient of `states` [tokens, hidden]
    const void* d_recurrent;  // gradient through U from the next time step [batch, hidden]
    float* d_cells;           // gradient of each sentence's cell from the next time step [batch, hidden]
    void* d_products;         // gradient of U h [tokens, 4 * hidden]; `gates` in float32
    float* d_projected;       // gradient of `projected`, added to [distinct, 4 * hidden]
};

template <class Low, bool is_first>
void forward_row(int64_t hidden, const float* __restrict inputs, const typename Low::Type* __restrict recurrent,
                 const float* cell_before, float* __restrict gates, float* cell, float* __restrict state,
                 typename Low::Type* __restrict before_next) {
#pragma GCC ivdep
    for (int64_t n = 0; n < hidden; n++) {
        const float i = sigmoid(inputs[n] + (is_first ? 0.0f : Low::read(recurrent[n])));
        const float f = sigmoid(inputs[hidden + n] + (is_first ? 0.0f : Low::read(recurrent[hidden + n])));
        const float g = hyperbolic_tangent(inputs[2 * hidden + n] +
                                           (is_first ? 0.0f : Low::read(recurrent[2 * hidden + n])));
        const float o = sigmoid(inputs[3 * hidden + n] + (is_first ? 0.0f : Low::read(recurrent[3 * hidden + n])));
        const float c = i * g + (is_first ? 0.0f : f * cell_before[n]);
        const float h = o * hyperbolic_tangent(c);
        gates[n] = i;
        gates[hidden + n] = f;
        gates[2 * hidden + n] = g;
        gates[3 * hidden + n] = o;
        cell[n] = c;
        state[n] = h;
        if (before_next) before_next[n] = Low::write(h);
    }
}

template <class Low, bool is_first>
void forward(const Direction& d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden;
    const Type* recurrent = static_cast<const Type*>(d.recurrent);
    Type* states_before = static_cast<Type*>(d.before);
    for (int64_t row = 0; row < batch; row++) {
        const int64_t token = first + row;
        forward_row<Low, is_first>(hidden, d.projected + d.tokens[token] * 4 * hidden, recurrent + row * 4 * hidden,
                                   is_first ? nullptr : d.cells + (before + row) * hidden,
                                   d.gates + token * 4 * hidden, d.cells + token * hidden, d.states + token * hidden,
                                   row < next_batch ? states_before + (token + batch) * hidden : nullptr);
    }
}

template <class Low, bool is_first, bool is_last>
void backward_row(int64_t hidden, const float* __restrict d_state, const typename Low::Type* __restrict d_recurrent,
                  float* __restrict d_cell, const float* gates, const float* __restrict cell,
                  const float* __restrict cell_before, typename Low::Type* d_products,
                  float* __restrict d_projected) {
#pragma GCC ivdep
    for (int64_t n = 0; n < hidden; n++) {
        const float i = gates[n], f = gates[hidden + n], g = gates[2 * hidden + n], o = gates[3 * hidden + n];
        const float t = hyperbolic_tangent(cell[n]);
        const float d = d_state[n] + (is_last ? 0.0f : Low::read(d_recurrent[n]));
        const float d_c = (is_last ? 0.0f : d_cell[n]) + d * o * (1.0f - t * t);
        const float d_i = d_c * g * i * (1.0f - i);
        const float d_f = is_first ? 0.0f : d_c * cell_before[n] * f * (1.0f - f);
        const float d_g = d_c * i * (1.0f - g * g);
        const float d_o = d * t * o * (1.0f - o);
        d_cell[n] = d_c * f;
        d_projected[n] += d_i;
        d_projected[hidden + n] += d_f;
        d_projected[2 * hidden + n] += d_g;
        d_projected[3 * hidden + n] += d_o;
        d_products[n] = Low::write(d_i);
        d_products[hidden + n] = Low::write(d_f);
        d_products[2 * hidden + n] = Low::write(d_g);
        d_products[3 * hidden + n] = Low::write(d_o);
    }
}

template <class Low, bool is_first>
void backward(const Direction& d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden;
    const Type* d_recurrent = static_cast<const Type*>(d.d_recurrent);
    Type* d_products = static_cast<Type*>(d.d_products);
    for (int64_t row = 0; row < batch; row++) {
        const int64_t token = first + row;
        const auto run = row < next_batch ? backward_row<Low, is_first, false> : backward_row<Low, is_first, true>;
        run(hidden, d.d_states + token * hidden, d_recurrent + row * hidden, d.d_cells + row * hidden,
            d.gates + token * 4 * hidden, d.cells + token * hidden,
            is_first ? nullptr : d.cells + (before + row) * hidden, d_products + token * 4 * hidden,
            d.d_projected + d.tokens[token] * 4 * hidden);
    }
}

template <class Low>
void forward_step(const Direction& d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    before < 0 ? forward<Low, true>(d, before, first, batch, next_batch)
               : forward<Low, false>(d, before, first, batch, next_batch);
}

template <class Low>
void backward_step(const Direction& d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    before < 0 ? backward<Low, true>(d, before, first, batch, next_batch)
               : backward<Low, false>(d, before, first, batch, next_batch);
}

}  // namespace

// The first `next_batch` rows of the batch are the sentences that reach the next time step.
extern "C" {

void lstm_forward_float32(const Direction* d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    forward_step<Float>(*d, before, first, batch, next_batch);
}

void lstm_forward_bfloat16(const Direction* d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    forward_step<BFloat16>(*d, before, first, batch, next_batch);
}

void lstm_backward_float32(const Direction* d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    backward_step<Float>(*d, before, first, batch, next_batch);
}

void lstm_backward_bfloat16(const Direction* d, int64_t before, int64_t first, int64_t batch, int64_t next_batch) {
    backward_step<BFloat16>(*d, before, first, batch, next_batch);
}
}
