// The operations of a GRU between two matrix products, forward and backward, in one pass over each sentence's state.
//
// One call is one time step of a packed batch: `batch` rows, the sentences that reach it, whose tokens start at row
// `first`. The caller computes the products U h and d U, in float32 or bfloat16; everything else is float32. A row of
// 3 * hidden values has the blocks r, z, c. Rows are tokens, time-major, unless noted otherwise.

#include <cstdint>

#include "numbers.h"

namespace {

// The arguments shared by all time steps of one direction; `_Direction` in packed_gru/cells.py has the same fields.
struct Direction {
    int64_t hidden;
    const int64_t* tokens;   // word of each token
    const float* projected;  // W x + b of each distinct word [distinct, 3 * hidden]
    const float* bias;       // b' of the candidate [hidden]
    float* gates;            // r, z and c after activation [tokens, 3 * hidden]; null if no backward follows
    float* products;         // U_c h + b' [tokens, hidden]
    float* states;           // state before each token [tokens, hidden]; of each sentence if no backward follows
    void* low_states;        // the same in bfloat16; null in float32
    const void* recurrent;   // U h of this time step [batch, 3 * hidden]
    float* last;             // state after the last token of each sentence [batch, hidden]
    float* d_state;          // gradient of each sentence's state [batch, hidden]
    const void* d_recurrent; // gradient through U from the next time step [batch, hidden]
    void* d_products;        // gradient of U h [tokens, 3 * hidden]; may be `gates` in float32
    float* d_projected;      // gradient of `projected`, added to [distinct, 3 * hidden]
    float* d_bias;           // gradient of `bias`, added to [hidden]
};

template <class Low, bool is_first, bool needs_backward>
void forward_row(int64_t hidden, const float* __restrict inputs, const typename Low::Type* __restrict recurrent,
                 const float* __restrict bias, const float* before, float* __restrict gates,
                 float* __restrict product, float* after, typename Low::Type* __restrict low_after) {
#pragma GCC ivdep
    for (int64_t i = 0; i < hidden; i++) {
        const float h = is_first ? 0.0f : before[i];
        const float recurrent_r = is_first ? 0.0f : Low::read(recurrent[i]);
        const float recurrent_z = is_first ? 0.0f : Low::read(recurrent[hidden + i]);
        const float recurrent_c = (is_first ? 0.0f : Low::read(recurrent[2 * hidden + i])) + bias[i];
        const float r = sigmoid(inputs[i] + recurrent_r);
        const float z = sigmoid(inputs[hidden + i] + recurrent_z);
        const float c = hyperbolic_tangent(inputs[2 * hidden + i] + r * recurrent_c);
        const float state = c + z * (h - c);
        if (needs_backward) {
            gates[i] = r;
            gates[hidden + i] = z;
            gates[2 * hidden + i] = c;
            product[i] = recurrent_c;
        }
        after[i] = state;
        if (low_after) low_after[i] = Low::write(state);
    }
}

template <class Low, bool is_first, bool needs_backward>
void forward(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden, now = needs_backward ? first : 0, next = needs_backward ? first + batch : 0;
    const Type* recurrent = static_cast<const Type*>(d.recurrent);
    Type* low_states = static_cast<Type*>(d.low_states);
    for (int64_t row = 0; row < batch; row++) {
        const bool continues = row < next_batch;
        const bool is_state = continues || !needs_backward;
        forward_row<Low, is_first, needs_backward>(
            hidden, d.projected + d.tokens[first + row] * 3 * hidden, recurrent + row * 3 * hidden, d.bias,
            d.states + (now + row) * hidden, d.gates + (needs_backward ? (now + row) * 3 * hidden : 0),
            d.products + (needs_backward ? (now + row) * hidden : 0),
            is_state ? d.states + (next + row) * hidden : d.last + row * hidden,
            low_states && continues ? low_states + (next + row) * hidden : nullptr);
    }
}

template <class Low, bool is_first>
void backward_row(int64_t hidden, float* __restrict d_state, const typename Low::Type* __restrict d_recurrent,
                  const float* gates, const float* __restrict product, const float* __restrict before,
                  typename Low::Type* d_products, float* __restrict d_projected, float* __restrict d_bias) {
#pragma GCC ivdep
    for (int64_t i = 0; i < hidden; i++) {
        const float r = gates[i], z = gates[hidden + i], c = gates[2 * hidden + i];
        const float h = is_first ? 0.0f : before[i];
        const float d = d_state[i] + (d_recurrent ? Low::read(d_recurrent[i]) : 0.0f);
        const float d_c = d * (1.0f - z) * (1.0f - c * c);
        const float d_z = d * (h - c) * z * (1.0f - z);
        const float d_r = d_c * product[i] * r * (1.0f - r);
        d_state[i] = d * z;
        d_projected[i] += d_r;
        d_projected[hidden + i] += d_z;
        d_projected[2 * hidden + i] += d_c;
        d_bias[i] += d_c * r;
        d_products[i] = Low::write(d_r);
        d_products[hidden + i] = Low::write(d_z);
        d_products[2 * hidden + i] = Low::write(d_c * r);
    }
}

template <class Low, bool is_first>
void backward(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    using Type = typename Low::Type;
    const int64_t hidden = d.hidden;
    const Type* d_recurrent = static_cast<const Type*>(d.d_recurrent);
    Type* d_products = static_cast<Type*>(d.d_products);
    for (int64_t row = 0; row < batch; row++) {
        const int64_t token = first + row;
        const Type* d_next = row < next_batch ? d_recurrent + row * hidden : nullptr;
        backward_row<Low, is_first>(hidden, d.d_state + row * hidden, d_next, d.gates + token * 3 * hidden,
                                    d.products + token * hidden, d.states + token * hidden,
                                    d_products + token * 3 * hidden, d.d_projected + d.tokens[token] * 3 * hidden,
                                    d.d_bias);
    }
}

template <class Low>
void forward_step(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    if (d.gates) {
        first ? forward<Low, false, true>(d, first, batch, next_batch)
              : forward<Low, true, true>(d, first, batch, next_batch);
    } else {
        first ? forward<Low, false, false>(d, first, batch, next_batch)
              : forward<Low, true, false>(d, first, batch, next_batch);
    }
}

template <class Low>
void backward_step(const Direction& d, int64_t first, int64_t batch, int64_t next_batch) {
    first ? backward<Low, false>(d, first, batch, next_batch) : backward<Low, true>(d, first, batch, next_batch);
}

}  // namespace

// The first `next_batch` rows of the batch are the sentences that reach the next time step.
extern "C" {

void gru_forward_float32(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    forward_step<Float>(*d, first, batch, next_batch);
}

void gru_forward_bfloat16(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    forward_step<BFloat16>(*d, first, batch, next_batch);
}

void gru_backward_float32(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    backward_step<Float>(*d, first, batch, next_batch);
}

void gru_backward_bfloat16(const Direction* d, int64_t first, int64_t batch, int64_t next_batch) {
    backward_step<BFloat16>(*d, first, batch, next_batch);
}
}
