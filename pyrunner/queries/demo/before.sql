-- Copies of everything as it is before the first cycle, to compare with at the end.
create temporary table lead_before as table crm.leads;
create temporary table booking_before as table crm.bookings;
create temporary table deal_before as table crm.deals;
create temporary table fixation_before as table crm.fixations;
analyze lead_before, booking_before, deal_before, fixation_before;
